"""The contract of a scheduler: it drives one episode, model turn after model turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from envrl.engine.base import Engine
from envrl.env.base import Face
from envrl.stop import StopReason

if TYPE_CHECKING:
    from envrl.rollout.trajectory import Episode
    from envrl.rollout.transcript import Turn
    from envrl.spec import SchedulerSpec


class Scheduler(ABC):
    """A loop over one episode. A user's own is a subclass named by `scheduler.target`."""

    face: ClassVar[Face]
    """How the environment is shown to the model."""

    @classmethod
    def of(cls, settings: SchedulerSpec) -> Self:
        """The loop for these settings, which every episode carries as `limits`."""
        return cls()

    @abstractmethod
    async def run(self, episode: Episode, engine: Engine) -> StopReason:
        """Plays the episode to its end. What the world breaks is raised as WorldError."""


class TurnScheduler(Scheduler):
    """Model turn → environment → model turn, until the environment, the model or a limit ends it."""

    async def run(self, episode: Episode, engine: Engine) -> StopReason:
        """One episode; subclasses say in `act` what a turn does."""
        limits = episode.limits
        await episode.begin(self.face)
        if episode.done:
            return StopReason.DONE
        while (turn := await episode.generate(engine)) is not None:
            if turn.cut and not limits.continue_on_length:
                return StopReason.LENGTH
            answers = await self.act(episode, turn)
            if not answers:
                return StopReason.NO_TOOL_CALL
            episode.messages += answers
            if episode.done:
                if limits.after_done == "speak" and episode.observe(answers, engine):
                    await episode.generate(engine)
                return StopReason.DONE
            if len(episode.turns) == limits.max_turns:
                return StopReason.MAX_TURNS
            if not episode.observe(answers, engine):
                return StopReason.LENGTH
        return StopReason.LENGTH

    @abstractmethod
    async def act(self, episode: Episode, turn: Turn) -> list[dict[str, Any]]:
        """Carries out the model's turn; returns the messages that answer it, none to end the episode."""
