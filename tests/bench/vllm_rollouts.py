"""Rollouts on a colocated engine: whose code takes the time, a driver in lock-step, the limit.

python vllm_rollouts.py FOLDER, with the warm-started model in it. Weight pushes are at the end.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench_vllm import PAIRS
from grpo_side import GROUPS, LAKE, MEMBERS
from slow_lake import Latency
from vllm_drill import DRILL, Barrier, LockStep, RandomLengths
from vllm_limit import Pace, Span, Watched, limit_s, measure_pace
from vllm_push import COLOCATE, SERVER, SMALL, TINY, measure_push
from vllm_share import Share
from vllm_side import OVERRIDES

from envrl import compose
from envrl.engine.base import Engine
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Task, Tasks
from envrl.spec import RunSpec
from envrl.stage.base import Run
from envrl.summary import Summary

EPISODES = GROUPS * MEMBERS


async def main(folder: Path) -> None:
    """One engine after the other."""
    await shares(folder)
    await against_lock_step(folder)
    for name, overrides in (
        ("colocate", TINY + COLOCATE),
        ("colocate", SMALL + COLOCATE),
        ("server", SMALL + SERVER),
    ):
        await measure_push(name, folder, overrides)


@dataclass(frozen=True)
class Rollout:
    """What one came to."""

    wall_s: float
    parts: dict[str, float]
    """CPU time over the wall, by whose code it is."""
    spans: list[Span]
    tools_s: dict[str, float]
    """By episode."""

    def distance(self, pace: Pace) -> float:
        """The wall over the least that it could have been, with the engine at this pace."""
        return self.wall_s / limit_s(self.spans, self.tools_s, pace)


@dataclass
class Bench:
    """A colocated engine, and what drives it."""

    spec: RunSpec
    run: Run
    engine: Engine
    runner: Runner

    @classmethod
    async def of(cls, folder: Path, overrides: Iterable[str]) -> Bench:
        spec = _spec(folder, overrides)
        run = Run(spec, Summary(spec.digest))
        engine = (await run.agent()).engine
        return cls(spec, run, engine, await run.runner())

    def tasks(self, members: int, index: int) -> list[list[Task]]:
        """Those of one round."""
        groups = EPISODES // members
        tasks = Tasks(self.spec.env, seed=self.spec.seed, stage="train", members=members)
        return tasks.groups(groups * index, groups * (index + 1))

    async def play(
        self, groups: list[list[Task]], *, runner: Runner | None = None, lengths: bool = False
    ) -> Rollout:
        """All at once, by the runner; `lengths` draws those of the turns."""
        watched = Watched(self.engine)
        engine = RandomLengths(watched) if lengths else watched
        share, started = Share(), time.perf_counter()
        played = await (runner or self.runner).run(
            groups, lambda *_: engine, self.run.sampling(1.0), name=f"from {groups[0][0].group}"
        )
        wall_s = time.perf_counter() - started
        tools_s = {e.name: sum(turn.step_s for turn in e.turns) for group in played for e in group}
        return Rollout(wall_s, share.parts(wall_s), watched.spans, tools_s)


async def shares(folder: Path) -> None:
    """Whose code the CPU runs while FrozenLake is played."""
    bench = await Bench.of(folder, [*LAKE, f"model.name_or_path={folder / 'model'}"])
    for latency_s in (0.0, 0.05):
        Latency.mean_s = latency_s
        parts, distances = [], []
        for index in range(PAIRS + 1):
            pace = await measure_pace(bench.engine)
            rollout = await bench.play(bench.tasks(MEMBERS, index))
            parts.append(rollout.parts)
            distances.append(rollout.distance(pace))
        shown = ", ".join(f"{who} {median(part[who] for part in parts[1:]):.1%}" for who in parts[0])
        print(
            f"FrozenLake, tools {1000 * latency_s:.0f} ms: CPU time over the wall: {shown}; "
            f"wall / limit {median(distances[1:]):.2f}",
            flush=True,
        )
    await bench.run.close()


async def against_lock_step(folder: Path) -> None:
    """Episodes of random length, each at its own pace or all in step."""
    bench = await Bench.of(folder, DRILL)
    in_step = _spec(folder, [*DRILL, "scheduler.target=vllm_drill:LockStep"])
    lock_step = Runner(in_step, (await bench.run.agent()).chat)
    for latency_s in (0.0, 0.05, 0.2):
        Latency.mean_s = latency_s
        ours, theirs, distances = [], [], []
        for index in range(PAIRS + 1):
            groups, pace = bench.tasks(1, index), await measure_pace(bench.engine)
            rollout = await bench.play(groups, lengths=True)
            ours.append(rollout.wall_s)
            distances.append(rollout.distance(pace))
            LockStep.barrier = Barrier(EPISODES)
            theirs.append((await bench.play(groups, runner=lock_step, lengths=True)).wall_s)
        wall_s, lock_s = median(ours[1:]), median(theirs[1:])  # the first pair warms up
        print(
            f"random lengths, tools {1000 * latency_s:.0f} ms: envrl {EPISODES / wall_s:.1f} episodes/s, "
            f"lock-step {EPISODES / lock_s:.1f}; ratio {lock_s / wall_s:.2f}; "
            f"wall / limit {median(distances[1:]):.2f}",
            flush=True,
        )
    await bench.run.close()


def _spec(folder: Path, overrides: Iterable[str]) -> RunSpec:
    return compose(
        [*OVERRIDES, *overrides, "stages=[train]", "model.warm_start=null", f"output_dir={folder / 'run'}"]
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
