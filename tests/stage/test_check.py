"""The preflight: what it lets pass, and what it stops with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small import game, lake  # type: ignore[import-not-found]

from envrl import compose, run
from envrl.errors import EnvrlError, StageError
from envrl.tracking import read_jsonl

pytestmark = pytest.mark.usefixtures("elsewhere")


UNTRAINED = ["model.warm_start=null", "stages=[check,train]", "grpo.steps=1"]


def test_without_a_signal_training_does_not_begin() -> None:
    with pytest.raises(StageError, match=r"0 of 2 groups differ in reward.*check\.require_signal=false"):
        run(compose(lake(*UNTRAINED, "output_dir=stopped")))
    assert not read_jsonl(Path("stopped/metrics.jsonl"))


def test_a_missing_signal_can_be_waved_through(capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(compose(lake(*UNTRAINED, "check.require_signal=false")))
    assert summary.stages == ["check", "train"]
    assert "warning: learning signal: 0 of 2 groups" in capsys.readouterr().err


def test_the_signal_is_measured_on_groups_whose_members_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is not touched, in a game whose reward is not its doing."""
    run(compose(game("Fading", "stages=[check,train]", "grpo.steps=1", "output_dir=fading")))
    assert "learning signal: 2 of 2 groups" in capsys.readouterr().err
    episodes = [
        episode for episode in read_jsonl(Path("fading/episodes.jsonl")) if episode["stage"] == "check"
    ]
    assert [episode["group"] for episode in episodes] == [0] * 4 + [1] * 4


def test_a_solver_no_better_than_chance_is_refused() -> None:
    with pytest.raises(StageError, match=r"env\.custom: gold play scores .* no more than random play"):
        run(compose(game("Clueless", "stages=[check]", "output_dir=clueless")))


def test_a_world_that_breaks_scripted_play_is_named() -> None:
    with pytest.raises(
        StageError, match=r"env\.custom: 16 of 16 scripted episodes broke.*no route to the lake"
    ):
        run(compose(game("FarLake", "stages=[check]", "rollout.max_error_rate=1")))


def test_a_budget_beyond_the_context_is_refused_with_one_that_fits() -> None:
    with pytest.raises(EnvrlError, match=r"scheduler\.max_tokens=5000: .* context of 1024") as refused:
        run(compose(lake("stages=[check]", "scheduler.max_tokens=5000")))
    mend = re.search(r"give (scheduler\.max_tokens=\d+)", str(refused.value))
    assert mend is not None
    assert run(compose(lake("stages=[check]", mend[1]))).status == "ok"


def test_a_budget_is_judged_without_a_solver_too() -> None:
    with pytest.raises(EnvrlError, match=r"scheduler\.max_tokens=5000"):
        run(compose(game("Fading", "stages=[check,train]", "scheduler.max_tokens=5000")))
