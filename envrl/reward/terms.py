"""The shipped terms, and how terms become one number per episode.

A term reads only the record as written to episodes.jsonl, so stored episodes can be scored again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from envrl.errors import ConfigError, unknown
from envrl.importing import load_object
from envrl.model.tool_calls import THINK_CLOSE, THINK_OPEN, parse_tool_calls, strip_thinking

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


def well_formed(record: Record) -> float | None:
    """1 where every turn has at most one thought, closed and before the rest, and calls that can be read."""
    turns = record["turns"]
    return float(bool(turns) and all(_is_well_formed(turn["text"]) for turn in turns))


def length(record: Record) -> float | None:
    """Minus the sampled tokens, in thousands: its weight is the price of 1000 tokens."""
    return -float(record["tokens"]) / 1000


def answer(record: Record) -> float | None:
    """1 where the model's last message states the row's `answer`; None for a row without one.

    It does so as the whole message, in its last \\boxed{}, or as its last number where nothing is boxed.
    """
    expected = record["row"].get("answer")
    if expected is None:
        return None
    said = [message["content"] for message in record["messages"] if message["role"] == "assistant"]
    return float(bool(said) and _states(strip_thinking(said[-1]), str(expected)))


def metric(name: str) -> Term:
    """A term that is one of the environment's metrics; None where an environment lacks it."""

    def term(record: Record) -> float | None:
        value: float | None = record["metrics"].get(name)
        return value

    return term


SUDOKU = ("empty_cell", "valid_move", "repetition", "progress", "correct")
WORDLE = ("win_reward", "partial_reward", "invalid_reward")

TERMS: dict[str, Callable[..., Any]] = {
    "env": env,
    "success": success,
    "valid_actions": valid_actions,
    "format": well_formed,
    "length": length,
    "answer": answer,
    **{name: metric(name) for name in SUDOKU + WORDLE},
}


def resolve(name: str) -> Callable[..., Any]:
    """The term of this name or import path `package.module:function`. Raises ConfigError."""
    if name in TERMS:
        return TERMS[name]
    if ":" not in name:
        raise ConfigError(unknown("reward term", name, TERMS) + ", or give package.module:function")
    term = load_object(name)
    if not callable(term):
        raise ConfigError(f"reward term {name}: not callable, got {type(term).__name__}")
    if not is_group_term(term):
        try:
            inspect.signature(term).bind({})
        except TypeError as error:
            theirs = "or the columns of a group and **kwargs as TRL's do"
            raise ConfigError(f"reward term {name}: must take a record, {theirs}: {error}") from error
    return term  # type: ignore[no-any-return]


def is_group_term(term: Callable[..., Any]) -> bool:
    """Whether it is written as TRL's reward functions are: columns of a group by keyword, `**kwargs` last."""
    parameters = inspect.signature(term).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def total(scores: Mapping[str, float | None], weights: Mapping[str, float] | None) -> float | None:
    """Weighted sum over the terms that gave a number; None where none did."""
    given = {name: value for name, value in scores.items() if value is not None}
    if not given:
        return None
    return sum((weights or {}).get(name, 1.0) * value for name, value in given.items())


_THOUGHT_FIRST = re.compile(r"(?s)(?:\s*<think>)?(?:(?!</?think>).)*</think>(?:(?!</?think>).)*")
"""A prompt may have opened the thought already."""
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
_NUMBER = re.compile(r"(?:(?<![\w.)])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def _is_well_formed(text: str) -> bool:
    if (THINK_OPEN in text or THINK_CLOSE in text) and not _THOUGHT_FIRST.fullmatch(text):
        return False
    return not any(call.error for call in parse_tool_calls(text))


def _states(text: str, expected: str) -> bool:
    if _equal(text, expected):
        return True
    stated = _BOXED.findall(text) or _NUMBER.findall(text)
    return bool(stated) and _equal(stated[-1], expected)


def _equal(one: str, other: str) -> bool:
    """Equal as text, whatever its case, or as numbers, however they are written."""
    if one.strip().casefold() == other.strip().casefold():
        return True
    try:
        return Decimal(one.replace(",", "")) == Decimal(other.replace(",", ""))
    except InvalidOperation:
        return False
