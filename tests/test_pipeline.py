"""The whole walk, as a user starts it, with few steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envrl import compose, run
from envrl.errors import ConfigError, StageError
from envrl.tracking import read_jsonl

SMALL = [
    "model.tiny.hidden_size=32", "model.tiny.intermediate_size=64", "model.tiny.num_hidden_layers=1",
    "model.warm_start.steps=6", "grpo.steps=4", "grpo.groups_per_step=2", "grpo.num_generations=4",
    "evaluate.episodes=8", "check.groups=2", "check.require_signal=false", "checkpoint.every=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def small(*overrides: str) -> list[str]:
    return [*SMALL, *overrides]


def timeless(path: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock wrote."""
    return [
        {key: value for key, value in line.items() if not key.startswith("time/") and key != "tokens_per_s"}
        for line in read_jsonl(path / "metrics.jsonl")
    ]


def test_the_walk_writes_what_the_run_directory_promises() -> None:
    spec = compose(small("output_dir=walk"))
    summary = run(spec)
    assert summary.status == "ok"
    assert summary.stages == [*spec.stages]
    assert [e["label"] for e in summary.evaluations] == ["warm_start", "grpo"]
    here = Path("walk")
    assert [line["step"] for line in read_jsonl(here / "metrics.jsonl")] == [1, 2, 3, 4]
    for name in ("spec.yaml", "summary.json", "report.html", "run.log", "checkpoints/step-4/config.json"):
        assert (here / name).exists(), name
    episodes = read_jsonl(here / "episodes.jsonl")
    needed = {"env", "seed", "group", "stop", "reward", "rewards", "success", "messages", "turns"}
    assert all(needed <= set(episode) for episode in episodes)
    for stage, count in {"check": 2 * 4, "evaluate": 2 * 8, "train": 4 * 2 * 4}.items():
        assert sum(episode["stage"] == stage for episode in episodes) == count


@pytest.mark.parametrize("scheduler", ["tool_calling", "gym"])
def test_the_same_command_gives_the_same_metrics(scheduler: str) -> None:
    for name in ("a", "b"):
        run(compose(small(f"output_dir={name}", f"scheduler={scheduler}", "stages=[warm_start,train]")))
    assert timeless(Path("a")) == timeless(Path("b"))


def test_a_run_killed_in_training_resumes_as_if_unbroken() -> None:
    stages = "stages=[warm_start,evaluate,train,evaluate]"
    run(compose(small("output_dir=whole", stages, "grpo.steps=8")))
    command = [sys.executable, "-m", "envrl", *small("output_dir=cut", stages, "grpo.steps=8")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(read_jsonl(Path("cut/metrics.jsonl"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(read_jsonl(Path("cut/metrics.jsonl"))) < 8
    summary = run(compose(small("output_dir=cut", stages, "grpo.steps=8")))
    assert summary.status == "ok"
    assert [e["label"] for e in summary.evaluations] == ["warm_start", "grpo"]
    assert timeless(Path("cut")) == timeless(Path("whole"))


def test_a_finished_run_is_shown_and_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = small("output_dir=done", "stages=[evaluate]")
    run(compose(overrides))
    written = Path("done/episodes.jsonl").stat().st_mtime_ns
    assert run(compose(overrides)).status == "ok"
    assert Path("done/episodes.jsonl").stat().st_mtime_ns == written
    assert "finished" in capsys.readouterr().out


def test_never_moves_the_old_run_aside() -> None:
    overrides = small("output_dir=again", "stages=[evaluate]", "resume=never")
    for _ in range(3):
        run(compose(overrides))
    assert {path.name for path in Path().glob("again*")} == {"again", "again.old-1", "again.old-2"}


def test_another_runs_directory_is_refused_with_the_changed_keys() -> None:
    run(compose(small("output_dir=mine", "stages=[evaluate]")))
    with pytest.raises(ConfigError, match=r"grpo\.steps: 4 there, 9 now"):
        run(compose(small("output_dir=mine", "stages=[evaluate]", "grpo.steps=9")))


def test_a_failing_stage_says_so_and_leaves_what_was_done() -> None:
    Path("broken.py").write_text(
        "from envrl.env.frozen_lake import FrozenLake\n"
        "class Broken(FrozenLake):\n"
        "    def reset(self, **row):\n"
        "        raise ConnectionError('no route to the lake')\n"
    )
    sys.path.insert(0, str(Path.cwd()))
    spec = compose(small("env=custom", "env.custom.target=broken:Broken", "output_dir=failed"))
    with pytest.raises(StageError, match="no route to the lake"):
        run(spec)
    summary = json.loads(Path("failed/summary.json").read_text())
    assert summary["status"] == "failed"
    assert "no route to the lake" in summary["error"]
    assert "Traceback" in Path("failed/run.log").read_text()


def test_a_checkpoint_can_be_evaluated_with_samples() -> None:
    run(compose(small("output_dir=source", "stages=[warm_start]")))
    spec = compose(
        small(
            "model.name_or_path=source/checkpoints/warm_start", "stages=[evaluate]", "output_dir=eval",
            "evaluate.samples=4", "evaluate.temperature=1",
        )  # fmt: skip
    )
    (evaluation,) = run(spec).evaluations
    assert evaluation["label"] == "warm_start"
    assert set(evaluation["pass_at_k"]) == {"1", "2", "4"}
