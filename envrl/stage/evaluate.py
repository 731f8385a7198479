"""Play on held-out tasks: success, reward and their intervals."""

from __future__ import annotations

import time

from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode
from envrl.stage.base import Run
from envrl.summary import Evaluation, evaluation_of


async def run(run: Run) -> None:
    """Evaluates the policy as it stands and adds one entry per environment to the summary."""
    for evaluation in await evaluate(run, run.label):
        run.summary.add(evaluation)


async def evaluate(run: Run, label: str, *, step: int | None = None) -> list[Evaluation]:
    """One entry per environment; the episodes go to episodes.jsonl under this label."""
    spec = run.spec.evaluate
    agent, runner = await run.agent(), await run.runner()
    groups = Tasks(run.spec.env, seed=spec.seed, stage="evaluate", members=spec.samples).groups(
        0, spec.episodes, **run.share
    )
    name = f"evaluate/{label}" if step is None else f"evaluate/{label}/{step}"
    with run.progress.stage(f"evaluate ({label})", total=len(groups) * spec.samples, unit="episodes") as bar:
        started, tokens = time.perf_counter(), 0
        rewards, successes = Mean(), Mean()

        def played(episode: Episode) -> None:
            nonlocal tokens
            tokens += episode.tokens
            rewards.add(episode.score)
            successes.add(episode.success)
            rate = tokens / (time.perf_counter() - started)
            bar.advance(1, reward=rewards.value, success=successes.value, tokens_per_s=rate)

        sampling = run.sampling(spec.temperature)
        played_groups = await runner.run(groups, agent.engine_of, sampling, name=name, on_episode=played)
    records = run.gather([episode.record() for group in played_groups for episode in group])
    if step is None:
        run.tracker.forget("evaluate", label)
    run.tracker.record(records, stage="evaluate", label=label, step=step)
    return [
        evaluation_of([r for r in records if r["env"] == env], label, env, spec.samples, step=step)
        for env in run.spec.env
    ]


class Mean:
    """A running mean of the values that are there; None before the first."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._count = 0

    def add(self, value: float | None) -> None:
        """Takes one more value in; None is left out."""
        if value is not None:
            self._count += 1
            before = self.value or 0.0
            self.value = before + (value - before) / self._count
