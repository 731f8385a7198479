"""Runs the episodes of a step all at once, each its own coroutine: nothing waits for a slower neighbour."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envrl.engine.base import Engine, Sampling
from envrl.env import environment_class
from envrl.env.base import Face, checked_arguments
from envrl.env.host import Host, abandoned
from envrl.env.schema import tool_schemas
from envrl.errors import ConfigError, StageError, WorldError
from envrl.reward import score, total
from envrl.rollout.tasks import Task
from envrl.rollout.trajectory import Episode
from envrl.scheduler import Scheduler, scheduler_class
from envrl.seeds import derive
from envrl.spec import RunSpec
from envrl.stop import StopReason

if TYPE_CHECKING:
    from envrl.model.chat import Chat

log = logging.getLogger(__name__)

EngineOf = Callable[[Episode, Face], Engine]
MAX_ABANDONED = 64
"""Environment threads that may hang after a timeout before the run stops."""


class Runner:
    """Turns tasks into finished, scored episodes."""

    def __init__(self, spec: RunSpec, chat: Chat) -> None:
        self._spec = spec
        self._chat = chat
        self._classes = {key: environment_class(env.kind, env.target) for key, env in spec.env.items()}
        self._schedulers = {key: scheduler_class(spec.scheduler_of(key))() for key in spec.env}
        schemas = {key: tool_schemas(cls) for key, cls in self._classes.items()}
        everything = list({s["function"]["name"]: s for own in schemas.values() for s in own}.values())
        show_all = spec.scheduler.tools_visible == "all"
        self._schemas = {key: everything if show_all else own for key, own in schemas.items()}
        self._slots = asyncio.Semaphore(spec.rollout.max_inflight) if spec.rollout.max_inflight else None

    async def run(
        self,
        groups: Iterable[list[Task]],
        engine_of: EngineOf,
        sampling: Sampling,
        *,
        name: str,
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ) -> list[list[Episode]]:
        """Plays every task; `name` makes the episodes' names unique in the run.

        Raises StageError where too large a share of them was broken by the world.
        """

        async def play(task: Task) -> Episode:
            async with self._slots or nullcontext():
                episode = await self._play(task, engine_of, sampling, name)
            on_episode(episode)
            return episode

        async def group(tasks: list[Task]) -> list[Episode]:
            return await _together([play(task) for task in tasks])

        played = await _together([group(tasks) for tasks in groups])
        self._judge([episode for episodes in played for episode in episodes])
        return played

    async def _play(self, task: Task, engine_of: EngineOf, sampling: Sampling, name: str) -> Episode:
        """One task, in fresh environments until the world lets it end or the retries are used up."""
        for attempt in range(self._spec.rollout.retries + 1):
            episode = self._episode(task, sampling, f"{name}/{task.group}/{task.member}/{attempt}")
            episode.retries = attempt
            await self._attempt(episode, engine_of)
            if episode.stop is not StopReason.ERROR:
                break
            log.warning("%s ended as error: %s", episode.name, episode.error)
        return episode

    def _episode(self, task: Task, sampling: Sampling, name: str) -> Episode:
        spec, cls = self._spec.env[task.env], self._classes[task.env]
        try:
            environment = cls(**checked_arguments(cls, spec.args))
        except Exception as error:
            raise StageError(
                f"env.{task.env}: cannot be built: {type(error).__name__}: {error}; connections and the like "
                "belong into reset, where they are retried"
            ) from error
        return Episode(
            task,
            Host(environment),
            self._chat,
            limits=self._spec.scheduler_of(task.env),
            sampling=replace(sampling, seed=derive(self._spec.seed, name), stop_ids=self._chat.stop_ids),
            name=name,
            prompt=spec.prompt,
            tool_schemas=self._schemas[task.env],
        )

    async def _attempt(self, episode: Episode, engine_of: EngineOf) -> None:
        """Drives one episode behind the boundary and frees what it held, however it ends."""
        scheduler = self._schedulers[episode.task.env]
        engine = engine_of(episode, scheduler.face)
        try:
            episode.finish(await self._drive(scheduler, episode, engine))
            self._score(episode)
        except (ConfigError, StageError):
            raise
        except WorldError as error:
            episode.finish(StopReason.ERROR, str(error))
        except Exception as error:  # a user's scheduler or reward term may raise anything
            log.exception("%s", episode.name)
            episode.finish(StopReason.ERROR, f"{type(error).__name__}: {error}")
        finally:
            await engine.release(episode.name)
            await self._close(episode)

    async def _drive(self, scheduler: Scheduler, episode: Episode, engine: Engine) -> StopReason:
        """The scheduler's loop, within the episode's deadline."""
        deadline = asyncio.timeout(episode.limits.episode_timeout_s)
        try:
            async with deadline:
                return await scheduler.run(episode, engine)
        except TimeoutError:
            if deadline.expired():
                return StopReason.DEADLINE
            raise

    async def _close(self, episode: Episode) -> None:
        """What goes wrong here comes too late to change the episode."""
        try:
            await episode.host.close()
        except Exception as error:
            log.warning("%s: close: %s: %s", episode.name, type(error).__name__, error)

    def _score(self, episode: Episode) -> None:
        terms = self._spec.reward.terms
        if terms is None:
            terms = self._spec.env[episode.task.env].reward
        episode.scores = score(episode.record(), terms)
        episode.score = total(episode.scores, self._spec.reward.weights)

    def _judge(self, episodes: list[Episode]) -> None:
        """Stops the run where the world is too broken to learn from."""
        errors = [episode.error for episode in episodes if episode.stop is StopReason.ERROR]
        limit = self._spec.rollout.max_error_rate
        if len(errors) > limit * len(episodes):
            raise StageError(
                f"{len(errors)} of {len(episodes)} episodes ended as error, "
                f"more than rollout.max_error_rate={limit:g} allows; the first: {errors[0]}"
            )
        if abandoned() > MAX_ABANDONED:
            raise StageError(
                f"{abandoned()} environment calls hang in abandoned threads; "
                f"raise scheduler.step_timeout_s={self._spec.scheduler.step_timeout_s} or mend them"
            )


async def _together(coroutines: list[Any]) -> list[Any]:
    """Awaits all; the first exception cancels the rest."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]
