"""A run that is killed again and again, at moments of chance, comes to what an unbroken one does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from small import lake  # type: ignore[import-not-found]

from envrl import compose, run
from envrl.tracking import read_jsonl

pytestmark = pytest.mark.usefixtures("elsewhere")

SETTINGS = ["stages=[warm_start,train]", "grpo.steps=40", "checkpoint.every=1"]
CLOCKED = ("time/", "tokens_per_s", "rollout/inflight_mean")


def steps(name: str) -> list[dict[str, Any]]:
    lines = read_jsonl(Path(name, "metrics.jsonl"))
    return [{key: line[key] for key in line if not key.startswith(CLOCKED)} for line in lines]


def played(name: str) -> list[tuple[Any, ...]]:
    episodes = read_jsonl(Path(name, "episodes.jsonl"))
    return [(e.get("step"), e["name"], e["group"], e["seed"], e["reward"], e["messages"]) for e in episodes]


def kill_after(process: subprocess.Popen[bytes], name: str, *, step: int, wait_s: float) -> None:
    """Kills a run a while after a step was logged: its checkpoint may be half written by then."""
    deadline = time.monotonic() + 120
    while len(read_jsonl(Path(name, "metrics.jsonl"))) < step:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(wait_s)
    process.kill()
    process.wait()


def test_killed_at_moments_of_chance() -> None:
    whole, cut = (lake(*SETTINGS, f"output_dir={name}") for name in ("whole", "cut"))
    run(compose(whole))
    rng = Random(0)
    for step in (2, 12, 22):
        process = subprocess.Popen([sys.executable, "-m", "envrl", *cut], stderr=subprocess.DEVNULL)
        kill_after(process, "cut", step=step, wait_s=rng.uniform(0, 0.2))
        assert len(steps("cut")) < 40
    run(compose(cut))
    assert any(line["grad_norm"] for line in steps("whole"))
    assert steps("cut") == steps("whole")
    assert [e for e in played("cut") if e[0]] == [e for e in played("whole") if e[0]]
