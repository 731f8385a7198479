"""What can go wrong, and who must hear of it.

    EnvrlError
    ├── ConfigError      the composition cannot be run; exit status 2, before anything heavy starts
    ├── StageError       a stage could not finish; exit status 1, written to summary.json
    └── WorldError       the world broke an episode: it ends as `error`, is retried, is never trained on
        ├── StepTimeout  a reset or step took longer than scheduler.step_timeout_s
        ├── SessionLost  the environment's session is gone and cannot be continued
        └── EngineError  the engine could not answer

A mistake of the *model* (an unknown tool, malformed arguments, a ValueError from an environment)
is no error at all: its text goes back to the model as the tool's result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any


class EnvrlError(Exception):
    """Anything that envrl raises on purpose."""


class ConfigError(EnvrlError):
    """The composition cannot be run. Each line: what is wrong, the value, the override that mends it."""


class StageError(EnvrlError):
    """A stage could not finish."""


class WorldError(EnvrlError):
    """The world, not the model, broke an episode."""


class StepTimeout(WorldError):
    """An environment call took longer than its deadline."""


class SessionLost(WorldError):
    """An environment's session is gone."""


class EngineError(WorldError):
    """The engine could not answer a request."""


class Blame(StrEnum):
    """Who answers for an exception raised while an environment acted."""

    MODEL = "model"
    """The text goes back to the model; the episode goes on."""
    WORLD = "world"
    """The episode ends as `error`."""


def classify(exception: Exception) -> Blame:
    """The one boundary: a ValueError is the environment speaking to the model, all else is the world."""
    return Blame.MODEL if isinstance(exception, ValueError) else Blame.WORLD


def unknown(what: str, name: object, choices: Iterable[str]) -> str:
    """One line for a name that is not among the choices; the nearest one is offered."""
    known = sorted(choices)
    near = get_close_matches(str(name), known, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose from: {', '.join(known) or '(none)'}"
    return f"{what}: unknown {name!r}; {hint}"


def finite_number(what: str, value: Any) -> float:
    """A number that the world gave. Raises WorldError for text and for what is not finite."""
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise WorldError(f"{what} is {value!r:.80}, no finite number")
    return number
