"""Runs the episodes of a step all at once, each its own coroutine: nothing waits for a slower neighbour."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from envrl.engine.base import Engine, Sampling
from envrl.env.base import Face
from envrl.env.host import Host, abandoned
from envrl.env.schema import tool_schemas
from envrl.env.sources import Source, in_process
from envrl.errors import StageError
from envrl.rollout.boundary import boundary
from envrl.rollout.inflight import Gate
from envrl.rollout.scoring import needs_group, score, terms_of
from envrl.rollout.tasks import Task
from envrl.rollout.trajectory import Episode
from envrl.scheduler import Scheduler, make_scheduler
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
    """Turns tasks into finished episodes."""

    def __init__(self, spec: RunSpec, chat: Chat, sources: Mapping[str, Source] | None = None) -> None:
        """Without sources, every environment is an object of this process."""
        self._spec = spec
        self._chat = chat
        self._sources = sources or in_process(spec.env)
        self._schedulers = {key: make_scheduler(spec.scheduler_of(key)) for key in spec.env}
        named = {
            key: {schema["function"]["name"]: schema for schema in tool_schemas(source.make())}
            for key, source in self._sources.items()
        }
        everything = {name: schema for own in named.values() for name, schema in own.items()}
        shown = everything if spec.scheduler.tools_visible == "all" else {}
        self._schemas = {key: list((shown | own).values()) for key, own in named.items()}
        # Members of a group share their prompt, so the budget after it is what an episode takes at most.
        self.gate = Gate(spec.rollout, guess=spec.scheduler.max_tokens)
        self.inflight = self.gate.measured()
        """Of the newest `run`."""

    async def run(
        self,
        groups: Iterable[list[Task]],
        engine_of: EngineOf,
        sampling: Sampling,
        *,
        name: str,
        scored: bool = True,
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ) -> list[list[Episode]]:
        """Plays every task; `name` makes the episodes' names unique in the run.

        Without `scored` no reward term is asked. Raises StageError where too large a share of the episodes
        was broken by the world.
        """

        async def group(tasks: list[Task]) -> list[Episode]:
            # Environments stay open until the group is scored where a term wants to look at them.
            async with AsyncExitStack() as opened:
                hold = opened if scored and needs_group(terms_of(self._spec, tasks[0].env)) else None
                play = partial(self._play, engine_of=engine_of, sampling=sampling, name=name, hold=hold)
                episodes = await _together([play(task, members=len(tasks)) for task in tasks])
                if scored:
                    await score(episodes, self._spec)
                for episode in episodes:
                    on_episode(episode)
                return episodes

        self.gate.restart()
        played = await _together([group(tasks) for tasks in groups])
        self.inflight = self.gate.measured()
        self._judge([episode for episodes in played for episode in episodes])
        return played

    async def _play(
        self,
        task: Task,
        *,
        members: int,
        engine_of: EngineOf,
        sampling: Sampling,
        name: str,
        hold: AsyncExitStack | None,
    ) -> Episode:
        """One task, in fresh environments until the world lets it end or the retries are used up."""
        async with self.gate.place():
            for attempt in range(self._spec.rollout.retries + 1):
                episode = self._episode(task, sampling, f"{name}/{task.group}/{task.member}/{attempt}")
                episode.retries = attempt
                await self._attempt(episode, engine_of=engine_of, hold=hold)
                if episode.stop is not StopReason.ERROR:
                    break
        if episode.stop is not StopReason.ERROR:
            await self.gate.learn(_held(episode, members))
        return episode

    def _episode(self, task: Task, sampling: Sampling, name: str) -> Episode:
        return Episode(
            task,
            Host(self._sources[task.env].make()),
            self._chat,
            limits=self._spec.scheduler_of(task.env),
            sampling=replace(sampling, seed=derive(self._spec.seed, name), stop_ids=self._chat.stop_ids),
            name=name,
            prompt=self._spec.env[task.env].prompt,
            tool_schemas=self._schemas[task.env],
        )

    async def _attempt(self, episode: Episode, *, engine_of: EngineOf, hold: AsyncExitStack | None) -> None:
        """Drives one episode behind the boundary and frees what it held, however it ends.

        A live episode's environment is left open for `hold` to close, where there is one.
        """
        scheduler = self._schedulers[episode.task.env]
        engine = engine_of(episode, scheduler.face)
        self.gate.serves(engine)
        try:
            with boundary(episode):
                with episode.stepping():
                    await episode.host.environment.open()
                stop = await self._drive(scheduler, episode, engine)
                await episode.conclude()
                episode.finish(stop)
        finally:
            await engine.release(episode.name)
            scarce = self._sources[episode.task.env].scarce
            if hold and not scarce and episode.stop is not StopReason.ERROR:
                hold.push_async_callback(self._close, episode)
            else:
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


def _held(episode: Episode, members: int) -> float:
    """Tokens of its longest transcript, of which its group shares the prompt."""
    shared = 1 - 1 / members
    return max((len(t.ids) - shared * t.prompt_tokens for t in episode.transcripts), default=0.0)


async def _together(coroutines: list[Any]) -> list[Any]:
    """Awaits all; the first exception cancels the rest."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]
