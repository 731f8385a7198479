"""The policy that the KL holds on to is the one that GRPO began with, whatever was resumed since."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import game, lake  # type: ignore[import-not-found]

from envrl import compose, run
from envrl.errors import StageError
from envrl.tracking import read_jsonl

pytestmark = pytest.mark.usefixtures("elsewhere")

KL = ["grpo.kl_coef=0.1", "grpo.learning_rate=5e-3", "grpo.warmup_steps=0", "evaluate.episodes=1"]
WARM = ["stages=[warm_start,train]", *KL]


def kl(name: str) -> list[float]:
    return [line["kl_reference"] for line in read_jsonl(Path(f"{name}/metrics.jsonl"))]


def cut(name: str, *, step: int) -> None:
    """Makes of a finished run one that was stopped after a step."""
    summary: dict[str, Any] = json.loads(Path(f"{name}/summary.json").read_text())
    summary |= {"status": "failed", "stages": [stage for stage in summary["stages"] if stage != "train"]}
    Path(f"{name}/summary.json").write_text(json.dumps(summary))
    for checkpoint in Path(f"{name}/checkpoints").glob("step-*"):
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)


def rated() -> list[str]:
    """A run without a warm start, in which chance is paid."""
    rows = [json.dumps({"seed": seed, "rewards": [0.0, 1.0, 0.0, 1.0]}) + "\n" for seed in range(8)]
    Path("rows.jsonl").write_text("".join(rows))
    return game(
        "Rated", "stages=[train]", "env.custom.dataset=rows.jsonl", "scheduler.max_turn_tokens=8", *KL
    )


@pytest.mark.parametrize("settings", [lambda: lake(*WARM), rated], ids=["warm_start", "drawn"])
def test_a_resumed_run_keeps_the_reference_it_began_with(settings: Callable[[], list[str]]) -> None:
    run(compose([*settings(), "output_dir=whole"]))
    whole = kl("whole")
    assert whole[0] == 0  # the policy is its own reference
    assert min(whole[1:]) > 0
    run(compose([*settings(), "output_dir=other", "resume=whole/checkpoints/step-2"]))
    assert kl("other") == whole[2:]
    cut("whole", step=2)
    run(compose([*settings(), "output_dir=whole"]))
    assert kl("whole") == whole


def test_a_reference_that_is_gone_is_told_and_not_guessed() -> None:
    run(compose(lake("output_dir=whole", *WARM)))
    shutil.rmtree("whole/checkpoints/warm_start")
    with pytest.raises(StageError, match=r"grpo\.kl_coef=0\.1: .*whole/checkpoints/warm_start; bring"):
        run(compose(lake("output_dir=other", "resume=whole/checkpoints/step-2", *WARM)))


def test_without_kl_no_reference_is_loaded() -> None:
    run(compose(lake("output_dir=plain", "stages=[train]", "grpo.steps=1")))
    (line,) = read_jsonl(Path("plain/metrics.jsonl"))
    assert "kl_reference" not in line
