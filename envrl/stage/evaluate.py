"""Play on held-out tasks: success, reward and their intervals."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode
from envrl.spec import Stage
from envrl.stage.base import Run
from envrl.summary import Evaluation, Record, evaluation_of, paired_change
from envrl.tracking import iter_jsonl


async def run(run: Run) -> None:
    """Evaluates the policy as it stands and adds one entry per environment to the summary."""
    label = run.label
    before = [e["label"] for e in run.summary.evaluations if e.get("step") is None and e["label"] != label]
    evaluations = await evaluate(run, label)
    if before and run.accelerator.is_main_process:
        _compare(evaluations, run, since=before[-1])
    for evaluation in evaluations:
        run.summary.add(evaluation)


def _compare(evaluations: Sequence[Evaluation], run: Run, *, since: str) -> None:
    """Adds the paired change since an earlier label, from the episodes of both, which are read once."""
    played: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in iter_jsonl(run.tracker.episodes):
        if record["stage"] == Stage.EVALUATE and "step" not in record:
            played[record["env"], record["label"]].append(record)
    for evaluation in evaluations:
        env = evaluation["env"]
        old, new = played[env, since], played[env, evaluation["label"]]
        if change := paired_change(old, new, since=since):
            evaluation["change"] = change


async def evaluate(run: Run, label: str, *, step: int | None = None) -> list[Evaluation]:
    """One entry per environment; the episodes go to episodes.jsonl under this label."""
    spec = run.spec.evaluate
    agent, runner = await run.agent(), await run.runner()
    tasks = Tasks(run.spec.env, seed=spec.seed, stage="evaluate", members=spec.samples)
    groups = tasks.groups(0, spec.episodes, **run.share, once=spec.temperature == 0)
    for env in run.spec.env:
        size = tasks.size(env)
        if size and spec.temperature == 0:
            run.progress.log(f"evaluate: env.{env} has {size} tasks; greedy play repeats none of them")
    name = f"evaluate/{label}" if step is None else f"evaluate/{label}/{step}"
    with run.progress.stage(f"evaluate ({label})", total=len(groups) * spec.samples, unit="episodes") as bar:
        started, tokens = time.perf_counter(), 0
        rewards, successes = Mean(), Mean()

        def played(episode: Episode) -> None:
            nonlocal tokens
            tokens += episode.tokens
            rewards.add(episode.reward)
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
        evaluation_of([r for r in records if r["env"] == env], label, env, samples=spec.samples, step=step)
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
