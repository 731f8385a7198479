"""How an episode is driven."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from envrl.spec.base import Positive, Seconds, Spec


class SchedulerKind(StrEnum):
    """Which loop drives an episode."""

    TOOL_CALLING = "tool_calling"
    GYM = "gym"
    HARNESS = "harness"


class SchedulerSpec(Spec):
    """How an episode is driven, and its limits. `null` means no limit; 0 is refused."""

    kind: SchedulerKind
    target: str | None
    """A scheduler in place of this kind's loop: an import path, ms-swift's included, or a plugin's name."""
    max_turns: Positive | None
    max_tokens: Positive
    """Of one episode: all turns and observations after the prompt."""
    max_turn_tokens: Positive | None
    continue_on_length: bool
    """A turn cut short by its length goes on with the next observation instead of ending the episode."""
    step_timeout_s: Seconds | None
    episode_timeout_s: Seconds | None
    tools_visible: Literal["own", "all"]
    """Whether the model sees only its environment's tools or those of the whole mixture."""
    after_done: Literal["stop", "speak"]
    """`speak` lets the model say one more thing after the environment ended the episode."""
