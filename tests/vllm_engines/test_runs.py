"""Whole runs: warm start, GRPO and evaluation with vLLM as the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from small import game, lake  # type: ignore[import-not-found]

from envrl import compose, run

MODES = {"colocate": ["vllm_mode=colocate"], "server": ["vllm_mode=server", "vllm_mode.launch=true"]}


@pytest.mark.parametrize("mode", MODES)
def test_a_run_learns_with_the_trainers_own_weights_in_the_engine(elsewhere: Path, mode: str) -> None:
    larger = ["grpo.learning_rate=3e-3", "grpo.groups_per_step=8", "check.groups=8", "name=run"]
    summary = run(compose(lake(*MODES[mode], *larger)))
    assert summary.status == "ok"
    steps = _lines(elsewhere / "outputs/run/metrics.jsonl")
    assert all(step.get("kl_engine", 0) < 1e-6 for step in steps)
    assert any(step["grad_norm"] > 0 for step in steps)
    assert all(step["time/push_s"] > 0 and step["time/episode/decode_s"] > 0 for step in steps)
    versions: dict[int, set[int]] = {}
    for episode in _lines(elsewhere / "outputs/run/episodes.jsonl"):
        if episode["stage"] == "train":
            made_by = {turn["weights_version"] for turn in episode["turns"]}
            versions.setdefault(episode["step"], set()).update(made_by)
    assert all(len(found) == 1 for found in versions.values())
    assert all(max(earlier) < min(later) for earlier, later in pairwise(versions.values()))


def test_the_engine_has_the_adapters_merged(elsewhere: Path) -> None:
    """In a game that pays chance, so that there is a gradient in every step."""
    Path("rows.jsonl").write_text('{"seed": 1, "rewards": [0.0, 1.0, 0.0, 1.0]}\n' * 10)
    settings = ["stages=[train]", "env.custom.dataset=rows.jsonl", "scheduler.max_turn_tokens=8", "name=run"]
    adapters = ["model.lora.rank=4", "grpo.learning_rate=5e-2", "grpo.warmup_steps=0"]
    run(compose(game("Rated", "vllm_mode=colocate", *settings, *adapters)))
    steps = _lines(elsewhere / "outputs/run/metrics.jsonl")
    assert len(steps) == 4
    assert all(step["grad_norm"] > 0 and step["kl_engine"] < 1e-6 for step in steps)


def test_observations_that_outgrow_the_context_end_episodes_by_length(elsewhere: Path) -> None:
    short = ["vllm_mode=colocate", "vllm_mode.max_model_len=160", "scheduler.max_tokens=60", "name=run"]
    summary = run(
        compose(lake(*short, "grpo.steps=1", "env.frozen_lake.args.size=4", "check.require_signal=false"))
    )
    assert summary.status == "ok"
    stops = {episode["stop"] for episode in _lines(elsewhere / "outputs/run/episodes.jsonl")}
    assert "length" in stops
    assert "error" not in stops


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_rank_has_an_engine_of_its_own(elsewhere: Path) -> None:
    overrides = ["vllm_mode=colocate", "grpo.groups_per_step=8", "check.groups=8", "name=run"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "envrl"]
    done = subprocess.run([*launch, *lake(*overrides)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    steps = _lines(elsewhere / "outputs/run/metrics.jsonl")
    assert all(step["rows"] == 32 and step.get("kl_engine", 0) < 1e-6 for step in steps)
