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
from small import game, lake  # type: ignore[import-not-found]

from envrl import compose, run
from envrl.errors import ConfigError, StageError
from envrl.tracking import read_jsonl

pytestmark = pytest.mark.usefixtures("elsewhere")


def timeless(path: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock wrote."""
    clocked = ("time/", "tokens_per_s", "rollout/inflight_mean")
    return [
        {key: value for key, value in line.items() if not key.startswith(clocked)}
        for line in read_jsonl(path / "metrics.jsonl")
    ]


def learned(path: Path) -> bool:
    """Whether any step had a gradient; without one, every run looks like any other."""
    return any(line["grad_norm"] for line in read_jsonl(path / "metrics.jsonl"))


def test_the_walk_writes_what_the_run_directory_promises() -> None:
    spec = compose(lake("output_dir=walk"))
    summary = run(spec)
    assert summary.status == "ok"
    assert summary.stages == [*spec.stages]
    assert [e["label"] for e in summary.evaluations] == ["warm_start", "grpo"]
    here = Path("walk")
    assert [line["step"] for line in read_jsonl(here / "metrics.jsonl")] == [1, 2, 3, 4]
    assert learned(here)
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
        run(compose(lake(f"output_dir={name}", f"scheduler={scheduler}", "stages=[warm_start,train]")))
    assert learned(Path("a"))
    assert timeless(Path("a")) == timeless(Path("b"))


STOPPED = ["stages=[warm_start,evaluate,train,evaluate]", "grpo.steps=8"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the stopped ones are measured by."""
    directory = tmp_path_factory.mktemp("unbroken") / "whole"
    run(compose(lake(f"output_dir={directory}", *STOPPED)))
    assert learned(directory)
    return directory


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_run_stopped_in_training_resumes_as_if_unbroken(
    unbroken: Path, sent: signal.Signals, status: int
) -> None:
    overrides, directory = lake("output_dir=cut", *STOPPED), Path("cut")
    with Path("said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "envrl", *overrides],
            stdout=said,
            stderr=said,
            start_new_session=True,
            # A shell starts what it puts into the background with SIGINT ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    wait_for_steps(process, directory, 3)
    process.send_signal(sent)
    assert process.wait(timeout=60) == status
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert 3 <= len(read_jsonl(directory / "metrics.jsonl")) < 8
    assert "Traceback" not in Path("said").read_text()
    if sent is not signal.SIGKILL:
        summary = json.loads((directory / "summary.json").read_text())
        assert (summary["status"], summary["stages"]) == ("failed", ["warm_start", "evaluate"])
        assert summary["error"]
    summary = run(compose(overrides))
    assert (summary.status, summary.error) == ("ok", None)
    assert [e["label"] for e in summary.evaluations] == ["warm_start", "grpo"]
    assert timeless(directory) == timeless(unbroken)


def wait_for_steps(process: subprocess.Popen[bytes], directory: Path, steps: int) -> None:
    deadline = time.monotonic() + 120
    while len(read_jsonl(directory / "metrics.jsonl")) < steps:
        assert process.poll() is None, Path("said").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_finished_run_is_shown_and_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = lake("output_dir=done", "stages=[evaluate]")
    run(compose(overrides))
    written = Path("done/episodes.jsonl").stat().st_mtime_ns
    assert run(compose(overrides)).status == "ok"
    assert Path("done/episodes.jsonl").stat().st_mtime_ns == written
    assert "finished" in capsys.readouterr().out


def test_never_moves_the_old_run_aside() -> None:
    overrides = lake("output_dir=again", "stages=[evaluate]", "resume=never")
    for _ in range(3):
        run(compose(overrides))
    assert {path.name for path in Path().glob("again*")} == {"again", "again.old-1", "again.old-2"}


def test_another_runs_directory_is_refused_with_the_changed_keys() -> None:
    run(compose(lake("output_dir=mine", "stages=[evaluate]")))
    with pytest.raises(ConfigError, match=r"grpo\.steps: 4 there, 9 now"):
        run(compose(lake("output_dir=mine", "stages=[evaluate]", "grpo.steps=9")))


def test_a_dataset_that_changed_is_not_taken_for_the_same() -> None:
    rows = Path("rows.jsonl")
    rows.write_text('{"seed": 1}\n' * 10)
    settings = lake("output_dir=mine", "stages=[evaluate]", "env.frozen_lake.dataset=rows.jsonl")
    run(compose(settings))
    run(compose(settings))
    rows.write_text('{"seed": 2}\n' * 10)
    with pytest.raises(ConfigError, match=r"'rows.jsonl' has changed .*resume=never"):
        run(compose(settings))
    run(compose([*settings, "resume=never"]))


def test_a_failing_stage_says_so_and_leaves_what_was_done() -> None:
    spec = compose(game("Unreachable", "output_dir=failed", "check.require_signal=false"))
    with pytest.raises(StageError, match="no route to the game"):
        run(spec)
    summary = json.loads(Path("failed/summary.json").read_text())
    assert summary["status"] == "failed"
    assert "no route to the game" in summary["error"]
    assert "Traceback" in Path("failed/run.log").read_text()


def test_a_checkpoint_can_be_evaluated_with_samples() -> None:
    run(compose(lake("output_dir=source", "stages=[warm_start]")))
    sampled = ["evaluate.samples=4", "evaluate.temperature=1"]
    source = "model.name_or_path=source/checkpoints/warm_start"
    spec = compose(lake(source, "stages=[evaluate]", "output_dir=eval", *sampled))
    (evaluation,) = run(spec).evaluations
    assert evaluation["label"] == "warm_start"
    assert evaluation["success_rate"]
    assert set(evaluation["pass_at_k"]) == {"1", "2", "4"}


def test_a_run_that_broke_before_its_first_checkpoint_counts_every_step_once() -> None:
    Path("trip.py").write_text(
        "from pathlib import Path\n"
        "from envrl.errors import StageError\n"
        "def term(record):\n"
        "    step3 = record['name'].startswith('train/3/')\n"
        "    if step3 and not Path('again').exists():\n"
        "        raise StageError('tripped')\n"
        "    return record['env_reward']\n"
    )
    sys.path.insert(0, str(Path.cwd()))
    overrides = lake(
        "output_dir=early", "stages=[train]", "checkpoint.every=null", "reward.terms=[trip:term]"
    )  # fmt: skip
    with pytest.raises(StageError, match="tripped"):
        run(compose(overrides))
    assert len(read_jsonl(Path("early/metrics.jsonl"))) == 2
    Path("again").touch()
    summary = run(compose(overrides))
    assert [line["step"] for line in read_jsonl(Path("early/metrics.jsonl"))] == [1, 2, 3, 4]
    assert summary.train is not None
    assert summary.train["steps"] == 4
    assert summary.train["episodes"] == 4 * 2 * 4


def test_a_run_resumed_in_its_second_epoch_plays_the_rows_of_an_unbroken_one() -> None:
    """(ms-swift#10050)"""
    Path("rows.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(5)))
    Path("stumble.py").write_text(
        "from pathlib import Path\n"
        "from envrl.errors import StageError\n"
        "def term(record):\n"
        "    if record['name'].startswith('train/4/') and not Path('again').exists():\n"
        "        raise StageError('stumbled')\n"
        "    return record['env_reward']\n"
    )
    epochs = ["stages=[train]", "grpo.steps=5", "env.custom.dataset=rows.jsonl", "plugins=[stumble.py]"]
    overrides = game("Guess", *epochs, "reward.terms=[envrl_plugin_stumble:term]", "checkpoint.every=1")
    with pytest.raises(StageError, match="stumbled"):
        run(compose([*overrides, "output_dir=cut"]))
    Path("again").touch()
    for name in ("cut", "whole"):
        run(compose([*overrides, f"output_dir={name}"]))
    cut, whole = (
        [(e["name"], e["row"], e["seed"]) for e in read_jsonl(Path(name, "episodes.jsonl"))]
        for name in ("cut", "whole")
    )
    assert cut == whole
    assert len({row["n"] for _, row, _ in whole}) == 5
    assert len({seed for *_, seed in whole}) == 10


def test_ranks_share_one_run_however_late_one_of_them_starts() -> None:
    Path("late.py").write_text("import os, time\ntime.sleep(2 * int(os.environ.get('RANK', 0)))\n")
    overrides = lake("stages=[warm_start,train,evaluate]", "plugins=[late.py]", "name=ranks")
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "envrl",
        *overrides,
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(launch, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert list(Path().rglob("*.yaml")) == [Path("outputs/ranks/spec.yaml")]
    run(compose(lake("stages=[warm_start,train,evaluate]", "plugins=[late.py]", "output_dir=alone")))
    ranks, alone = read_jsonl(Path("outputs/ranks/metrics.jsonl")), read_jsonl(Path("alone/metrics.jsonl"))
    assert [line["step"] for line in ranks] == [1, 2, 3, 4]
    for together, single in zip(ranks, alone, strict=True):
        assert together["episodes"] == single["episodes"]
        assert together["reward"] == pytest.approx(single["reward"], abs=1e-5)
