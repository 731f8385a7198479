"""vLLM in the trainer's process: envrl against TRL, then what vllm_rollouts.py compares.

All run on the same small models with one thread each, and in turns: a side's rounds alternate with the
other's, and medians of the rounds are shown. What TRL needs on a CPU is told in vllm_side.py.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench_trl import ENVIRONMENT, HERE, Side, warm_start
from grpo_side import GROUPS, MEMBERS

from envrl.engine.vllm.environment import prepare
from envrl.summary import machine

PAIRS = 5


def main() -> None:
    """All comparisons."""
    environment = dict(ENVIRONMENT)
    prepare(environment, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        warm_start(Path(folder))
        print(f"{GROUPS * MEMBERS} episodes, exponential latency, one thread, medians of {PAIRS} pairs")
        against_trl(Path(folder))
        subprocess.run([sys.executable, HERE / "vllm_rollouts.py", folder], env=environment, check=True)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))


def against_trl(folder: Path) -> None:
    """Episodes per second of FrozenLake, without the update."""
    steps = 1 + 2 * PAIRS
    ours, trl = (Side(name, folder, script="vllm_side.py", steps=steps) for name in ("ours", "trl"))
    try:
        for side in (ours, trl):
            side.step(0.0)  # warms up
        for latency_s in (0.0, 0.05):
            for side in (ours, trl):
                side.steps = []
            for _ in range(PAIRS):
                for side in (ours, trl):
                    side.steps.append(side.step(latency_s))
            rates = [GROUPS * MEMBERS / side.median("rollout_s") for side in (ours, trl)]
            print(
                f"FrozenLake, tools {1000 * latency_s:.0f} ms: envrl {rates[0]:.1f} episodes/s, "
                f"TRL {version('trl')} {rates[1]:.1f}; ratio {rates[0] / rates[1]:.1f}; "
                f"turns {ours.mean('turns'):.1f} and {trl.mean('turns'):.1f}, "
                f"tokens {ours.mean('tokens'):.0f} and {trl.mean('tokens'):.0f}",
                flush=True,
            )
    finally:
        for side in (ours, trl):
            side.close()


if __name__ == "__main__":
    main()
