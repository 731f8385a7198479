"""Seconds per GRPO step: envrl against TRL's GRPOTrainer with environment_factory.

A whole step (rollout, reward, update) of 64 episodes of FrozenLake, eight to a group, whose tool takes
50 ms on average, exponentially distributed. Both sides load one warm-started tiny model with its tokenizer
and chat template, play the same boards, and let the model speak once more when the game is over, because
TRL cannot end an episode otherwise. They run in processes of their own with one torch thread each and
take their steps in turns; the first step of each warms up.

Arguments choose the sides: `python tests/bench/bench_trl.py ours trl trl-async`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median

from grpo_side import GROUPS, MEMBERS, sides
from slow_lake import LATENCY_S

from envrl.summary import machine

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
ROUNDS = 3
WARM_START_STEPS = 120


class Side:
    """A process that takes a step when asked to."""

    def __init__(
        self, name: str, folder: Path, *, script: str = "grpo_side.py", steps: int = ROUNDS + 1
    ) -> None:
        self.name = name
        self.steps: list[dict[str, float]] = []
        self._log = folder / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, HERE / script, name, folder, str(steps)],
                env=ENVIRONMENT,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def step(self, latency_s: float = LATENCY_S) -> dict[str, float]:
        """Takes one step and says how long it took and what was done in it."""
        assert self._process.stdin
        assert self._process.stdout
        started = time.perf_counter()
        with suppress(BrokenPipeError):  # it has died, and its log says of what
            print(latency_s, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        step_s = time.perf_counter() - started
        if not answer:
            raise SystemExit(f"{self.name} failed:\n{self._log.read_text()[-3000:]}")
        figures: dict[str, float] = json.loads(answer)
        return {"step_s": step_s, "update_s": step_s - figures["rollout_s"], **figures}

    def median(self, key: str) -> float:
        return median(step[key] for step in self.steps)

    def mean(self, key: str) -> float:
        return fmean(step[key] for step in self.steps)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def warm_start(folder: Path) -> None:
    """A model that plays legal games of about four turns."""
    overrides = [
        *["stages=[warm_start]", "scheduler.after_done=speak", "check.groups=0", "output_dir=warm_start"],
        *[f"model.warm_start.steps={WARM_START_STEPS}", "model.warm_start.noise=0"],
    ]
    subprocess.run([sys.executable, "-m", "envrl", *overrides], cwd=folder, env=ENVIRONMENT, check=True)
    (folder / "warm_start/checkpoints/warm_start").rename(folder / "model")


def measure(names: list[str], folder: Path) -> list[Side]:
    """The sides, after their steps."""
    running = [Side(name, folder) for name in names]
    try:
        for index in range(ROUNDS + 1):
            for side in running:
                figures = side.step()
                if index:  # the first step warms up
                    side.steps.append(figures)
    finally:
        for side in running:
            side.close()
    return running


def show(measured: list[Side]) -> None:
    """Medians of the seconds, means of what was played."""
    print(
        f"one GRPO step, {GROUPS} groups of {MEMBERS} episodes, tools {1000 * LATENCY_S:.0f} ms exponential, "
        f"one thread, TRL {version('trl')}"
    )
    for side in measured:
        step_s, rollout_s, update_s = (side.median(key) for key in ("step_s", "rollout_s", "update_s"))
        each = ", ".join(f"{step['step_s']:.2f}" for step in side.steps)
        print(
            f"{side.name}: step {step_s:.2f} s ({each}), rollout {rollout_s:.2f} s, update {update_s:.2f} s; "
            f"episodes {side.mean('episodes'):.0f}, turns {side.mean('turns'):.2f}, "
            f"calls {side.mean('calls'):.2f}, reward {side.mean('reward'):.2f}, "
            f"sampled tokens {side.mean('tokens'):.0f}, rows in the update {side.mean('rows'):.0f}"
        )
    first, *others = measured
    for side in others:
        print(f"{side.name} / {first.name}: {side.median('step_s') / first.median('step_s'):.1f}")
    print(", ".join(f"{key} {value}" for key, value in machine().items()))


def main() -> None:
    """Warm start, then all sides in turns."""
    names = sys.argv[1:] or ["ours", "trl"]
    if unknown := set(names) - set(sides):
        raise SystemExit(f"no such side: {', '.join(unknown)}; there are {', '.join(sides)}")
    with tempfile.TemporaryDirectory() as folder:
        warm_start(Path(folder))
        show(measure(names, Path(folder)))


if __name__ == "__main__":
    main()
