"""Why an episode ends. Truncated is not terminated."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """`done` and `no_tool_call` are the episode's own end; the others cut it short."""

    DONE = "done"
    """The environment ended it."""
    NO_TOOL_CALL = "no_tool_call"
    """The model stopped acting."""
    MAX_TURNS = "max_turns"
    LENGTH = "length"
    """A turn's or the episode's token budget, or the model's context, is used up."""
    DEADLINE = "deadline"
    """scheduler.episode_timeout_s has passed."""
    ERROR = "error"
    """The world broke it; it is unscored."""

    @property
    def truncated(self) -> bool:
        """A limit ended the episode."""
        return self in (StopReason.MAX_TURNS, StopReason.LENGTH, StopReason.DEADLINE)
