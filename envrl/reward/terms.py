"""The shipped terms, and how terms become one number per episode.

A term reads only the record as written to episodes.jsonl, so stored episodes can be scored again.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from envrl.errors import ConfigError, WorldError, unknown
from envrl.importing import load_object

Record = Mapping[str, Any]
Term = Callable[[Record], float | None]


def env(record: Record) -> float | None:
    """The environment's own total."""
    reward: float | None = record["env_reward"]
    return reward


def success(record: Record) -> float | None:
    """1 for a solved task, 0 for an unsolved one."""
    return None if record["success"] is None else float(record["success"])


def valid_actions(record: Record) -> float | None:
    """Share of the turns whose action could be run."""
    turns = record["turns"]
    return sum(not turn["failures"] for turn in turns) / len(turns) if turns else None


TERMS: dict[str, Term] = {"env": env, "success": success, "valid_actions": valid_actions}


def resolve(name: str) -> Callable[..., Any]:
    """The term of this name or import path `package.module:function`. Raises ConfigError."""
    if name in TERMS:
        return TERMS[name]
    if ":" not in name:
        raise ConfigError(unknown("reward term", name, TERMS) + ", or give package.module:function")
    term = load_object(name)
    if not callable(term):
        raise ConfigError(f"reward term {name}: not callable, got {type(term).__name__}")
    return term  # type: ignore[no-any-return]


def is_group_term(term: Callable[..., Any]) -> bool:
    """Whether it is written as TRL's reward functions are: columns of a group by keyword, `**kwargs` last."""
    parameters = inspect.signature(term).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def number(name: str, value: Any, *, env: str) -> float | None:
    """A term's value as a number. Raises WorldError for one that is not finite."""
    if value is None:
        return None
    if not math.isfinite(value):
        raise WorldError(f"reward term {name}: {value} for an episode of {env}")
    return float(value)


def total(scores: Mapping[str, float | None], weights: Mapping[str, float] | None) -> float | None:
    """Weighted sum over the terms that gave a number; None where none did."""
    given = {name: value for name, value in scores.items() if value is not None}
    if not given:
        return None
    return sum((weights or {}).get(name, 1.0) * value for name, value in given.items())
