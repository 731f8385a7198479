"""The preflight: everything that can be known to be wrong before time is spent on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import fmean

from envrl.engine.base import Sampling
from envrl.env import build
from envrl.env.base import Face, has_solver
from envrl.env.policies import Policy, gold, random
from envrl.env.schema import tool_schemas
from envrl.env.sources import episodes_at_once
from envrl.errors import ConfigError, StageError
from envrl.grpo.advantages import is_flat
from envrl.rollout.policy import scripted
from envrl.rollout.rows import unread
from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode
from envrl.scheduler import scheduler_class
from envrl.spec import RunSpec, Stage
from envrl.stage.base import Run
from envrl.stop import StopReason
from envrl.summary import wilson

log = logging.getLogger(__name__)

PLAYED = 16
"""Tasks that each scripted policy plays."""
WEAK_SIGNAL = 0.1
"""Share of groups with different rewards below which a warning is due."""


async def run(run: Run) -> None:
    """Environments play, the template is token-exact, the budget fits, and there is something to learn."""
    agent = await run.agent()
    for key, source in run.sources.items():
        await source.prepare(episodes_at_once(run.spec, key))
    for key, env in run.spec.env.items():
        if env.dataset is not None and (columns := unread(key, run.spec.env)):
            run.progress.log(
                f"warning: env.{key}.dataset: no row has the column {' or '.join(columns)}, "
                "so the tasks are drawn by seed"
            )
        face = scheduler_class(run.spec.scheduler_of(key)).face
        environment = build(key, env)
        agent.chat.check(tool_schemas(environment) if face is Face.TOOL else None)
        if has_solver(type(environment)):
            best, worst = await played(run, key, gold), await played(run, key, random)
            _check_budget(run.spec, best + worst, agent.engine.max_context)
            _check_solver(run, key, best, worst)
        else:
            run.progress.log(f"check: env.{key} has no solver; only the model can show that it can be played")
    if not _warm_start_follows(run.spec) and (Stage.TRAIN in run.spec.stages or not run.fresh):
        await learning_signal(run)


async def played(run: Run, env: str, policy: Policy) -> list[Episode]:
    """A few of an environment's tasks, played by a scripted policy through the real scheduler."""
    tasks = Tasks(run.spec.env, seed=run.spec.seed, stage="check", members=1, only=[env])
    runner = await run.scripted_runner()
    sampling = Sampling(max_tokens=run.spec.scheduler.max_tokens)
    groups = await runner.run(tasks.groups(0, PLAYED), scripted(policy), sampling, name=f"check/{env}")
    episodes = [episode for group in groups for episode in group]
    broken = [episode.error for episode in episodes if episode.stop is StopReason.ERROR]
    if broken:
        raise StageError(
            f"env.{env}: {len(broken)} of {PLAYED} scripted episodes broke; the first: {broken[0]}"
        )
    return episodes


def _check_budget(spec: RunSpec, episodes: Sequence[Episode], max_context: int) -> None:
    prompt = max(t.prompt_tokens for episode in episodes for t in episode.transcripts)
    room = max_context - prompt
    if room < spec.scheduler.max_tokens:
        mend = f"give scheduler.max_tokens={room}" if room > 0 else "choose a model with a longer context"
        raise ConfigError(
            f"scheduler.max_tokens={spec.scheduler.max_tokens}: with a prompt of {prompt} tokens it exceeds "
            f"the engine's context of {max_context}; {mend}"
        )


def _check_solver(run: Run, env: str, best: Sequence[Episode], worst: Sequence[Episode]) -> None:
    gold_mean, random_mean = _mean(best), _mean(worst)
    run.progress.log(f"check: env.{env} gold scores {gold_mean:.2f}, random {random_mean:.2f}")
    if gold_mean <= random_mean:
        raise StageError(
            f"env.{env}: gold play scores {gold_mean:.3g}, no more than random play ({random_mean:.3g}); "
            "the reward, scheduler.max_turns or scheduler.max_tokens leaves nothing to learn"
        )


def _mean(episodes: Sequence[Episode]) -> float:
    scores = [episode.reward for episode in episodes if episode.reward is not None]
    return fmean(scores) if scores else 0.0


def _warm_start_follows(spec: RunSpec) -> bool:
    return Stage.WARM_START in spec.stages and spec.model.warm_start is not None


async def learning_signal(run: Run) -> None:
    """Plays a few groups as training would and counts those whose members differ in reward.

    Raises StageError where none does, unless check.require_signal=false.
    """
    spec = run.spec
    if not spec.check.groups:
        return
    agent, runner = await run.agent(), await run.runner()
    tasks = Tasks(spec.env, seed=spec.seed, stage="check", members=spec.grpo.num_generations)
    sampling = run.sampling(spec.grpo.temperature)
    with run.progress.stage("check (learning signal)", total=spec.check.groups, unit="groups") as bar:
        groups = await runner.run(
            tasks.groups(0, spec.check.groups), agent.engine_of, sampling, name="signal"
        )
        bar.advance(len(groups))
    episodes = [episode for group in groups for episode in group]
    _check_budget(spec, episodes, agent.engine.max_context)
    run.tracker.forget("check")
    run.tracker.record([episode.record() for episode in episodes], stage="check")
    mixed = sum(not is_flat([episode.reward for episode in group]) for group in groups)
    low, high = wilson(mixed / len(groups), len(groups))
    found = (
        f"learning signal: {mixed} of {len(groups)} groups differ in reward "
        f"({mixed / len(groups):.0%}, 95% interval {low:.0%}–{high:.0%})"
    )
    if mixed == 0 and spec.check.require_signal:
        raise StageError(
            f"{found}: GRPO has nothing to learn from; warm the model up, make the task easier, "
            "or go on with check.require_signal=false"
        )
    weak = mixed < WEAK_SIGNAL * len(groups)
    run.progress.log(f"warning: {found}" if weak else found)
    log.log(logging.WARNING if weak else logging.INFO, found)
