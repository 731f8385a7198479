"""The shipped terms, and how terms become one number per episode.

A term reads only the record as written to episodes.jsonl, so stored episodes can be scored again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
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


def resolve(name: str) -> Term:
    """The term of this name or import path `package.module:function`. Raises ConfigError."""
    if name in TERMS:
        return TERMS[name]
    if ":" not in name:
        raise ConfigError(unknown("reward term", name, TERMS) + ", or give package.module:function")
    term = load_object(name)
    if not callable(term):
        raise ConfigError(f"reward term {name}: not callable, got {type(term).__name__}")
    return term  # type: ignore[no-any-return]


def score(record: Record, terms: Iterable[str]) -> dict[str, float | None]:
    """Each term's number for one episode. Raises WorldError for one that is not finite."""
    scores: dict[str, float | None] = {}
    for name in terms:
        value = resolve(name)(record)
        if value is not None and not math.isfinite(value):
            raise WorldError(f"reward term {name}: {value} for an episode of {record['env']}")
        scores[name] = None if value is None else float(value)
    return scores


def total(scores: Mapping[str, float | None], weights: Mapping[str, float] | None) -> float | None:
    """Weighted sum over the terms that gave a number; None where none did."""
    given = {name: value for name, value in scores.items() if value is not None}
    if not given:
        return None
    return sum((weights or {}).get(name, 1.0) * value for name, value in given.items())
