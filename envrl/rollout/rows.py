"""Whose each row of a mixture's datasets is, and what is wrong with the rows.

A row names its environment in the column `env` or `environment`, or as `env_config.name`: a key of the
mixture, else the kind or target of one or more, else a name in ms-swift's registry if its classes play.
A row that names none belongs to the key whose dataset it stands in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from envrl.env import environment_class
from envrl.env.compat.swift import envs as registry
from envrl.env.compat.swift.adapter import SwiftEnvironment
from envrl.env.compat.trl import TrlEnvironment
from envrl.rollout.dataset import HELD_OUT_EVERY, Row, read_rows, same_dataset
from envrl.spec import EnvSpec

ROLES = ("system", "user", "assistant", "tool")
"""Chat templates leave out messages of a role that they do not know."""


class Owners:
    """The keys of a mixture, by all names that a row may give them."""

    def __init__(self, envs: Mapping[str, EnvSpec]) -> None:
        """Raises ConfigError where the class of an environment cannot be found."""
        self._envs = envs
        self._classes = {key: environment_class(env.kind, env.target) for key, env in envs.items()}
        self._keys: dict[str, list[str]] = {}
        for names_of in (self._registered, self._kinds, lambda key: [key]):  # the last that fits counts
            found: dict[str, list[str]] = {}
            for key in envs:
                for name in names_of(key):
                    found.setdefault(name, []).append(key)
            self._keys |= found

    def of(self, row: Row, *, dataset_of: str) -> list[str]:
        """The keys that a row of `env.<dataset_of>.dataset` belongs to; none where its name is unknown."""
        column, name = named(row)
        if column is None:
            return [dataset_of]
        owners = self._keys.get(name, []) if isinstance(name, str) else []
        # To an environment that is written for TRL, a column `env` is free to mean something else.
        free = column == "env" and issubclass(self._classes[dataset_of], TrlEnvironment)
        return owners or ([dataset_of] if free else [])

    def reset_of(self, key: str) -> Callable[..., Any]:
        """What gets the columns of a key's rows."""
        return self._classes[key].reset

    def known(self) -> str:
        """The names that a row may give, the mixture's own keys first."""
        return ", ".join({**self._envs, **self._keys})

    def _kinds(self, key: str) -> list[str]:
        """A target may be a name too, one that a plugin registered."""
        env = self._envs[key]
        return [env.kind, *([env.target] if env.target and ":" not in env.target else [])]

    def _registered(self, key: str) -> list[str]:
        """All of ms-swift's registry where its classes play, since they let the row choose."""
        return list(registry) if issubclass(self._classes[key], SwiftEnvironment) else []


def named(row: Row) -> tuple[str | None, Any]:
    """The column in which a row names its environment, and the name; None twice where there is neither."""
    for column in ("env", "environment"):
        if row.get(column) is not None:
            return column, row[column]
    config = row.get("env_config")
    if isinstance(config, dict) and config.get("name") is not None:
        return "env_config.name", config["name"]
    return None, None


def own_rows(key: str, envs: Mapping[str, EnvSpec]) -> list[Row]:
    """The rows of `env.<key>.dataset` that are this key's."""
    dataset, owners = envs[key].dataset, Owners(envs)
    assert dataset is not None
    return [row for row in read_rows(dataset) if key in owners.of(row, dataset_of=key)]


def unread(key: str, envs: Mapping[str, EnvSpec]) -> list[str]:
    """The columns that an environment's reset names, where no row of its dataset has one of them."""
    named = inspect.signature(Owners(envs).reset_of(key)).parameters.values()
    own = [p.name for p in named if p.kind is p.KEYWORD_ONLY and p.name != "seed"]
    found = {column for row in own_rows(key, envs) for column in row}
    return [] if found & {*own, "seed", "prompt", "messages"} else own


def faults(
    key: str, envs: Mapping[str, EnvSpec], *, evaluated: bool, reset: Callable[..., Any] | None = None
) -> Iterator[str]:
    """A line for all that is wrong with `env.<key>.dataset`. Raises ConfigError where it cannot be read.

    `reset` is that of an environment which may be asked what it makes of every row.
    """
    dataset, owners = envs[key].dataset, Owners(envs)
    assert dataset is not None
    sharing = {other for other, env in envs.items() if env.dataset and same_dataset(env.dataset, dataset)}
    unfit = cache(lambda columns: _unfit(columns, owners.reset_of(key)))
    own = 0
    for number, row in enumerate(read_rows(dataset), 1):
        keys, wrong = owners.of(row, dataset_of=key), None
        if key in keys:
            own += 1
            wrong = unfit(tuple(row)) or _fault(row) or (reset and _refused(row, reset))
        elif not sharing & set(keys):
            wrong = _unplayed(row, keys, owners, envs)
        if wrong:
            yield f"row {number} of {dataset!r}: {wrong}"
    if own == 0:
        yield f"{dataset!r} has no rows for env.{key}; mend: env.{key}.dataset=<one that has some>"
    elif own < HELD_OUT_EVERY and evaluated:
        yield (
            f"every {HELD_OUT_EVERY}th row is held out for evaluation, and {dataset!r} has {own} rows for "
            f"env.{key}; mend: more rows, or stages=[...] without evaluate and evaluate.every=null"
        )


def _unplayed(row: Row, keys: list[str], owners: Owners, envs: Mapping[str, EnvSpec]) -> str:
    """Why nobody would play a row."""
    column, name = named(row)
    if not keys:
        return f"{column} is {name!r}; known: {owners.known()}; mend: correct the row"
    theirs = f"env.{keys[0]}.dataset"
    return (
        f"{column} is {name!r}, and {theirs} is {envs[keys[0]].dataset!r}, not this one; "
        f"mend: {theirs}=<this one>"
    )


def misfit(columns: tuple[str, ...], reset: Callable[..., Any]) -> str | None:
    """Why `reset` cannot be called with these columns."""
    try:
        inspect.signature(reset).bind(None, **{"seed": 0, **dict.fromkeys(columns)})
    except TypeError as error:
        return f"{reset.__qualname__}: {error}"
    return None


def _unfit(columns: tuple[str, ...], reset: Callable[..., Any]) -> str | None:
    wrong = misfit(columns, reset)
    return wrong and f"{wrong}; it is called with every column; mend: let it take **row"


def _fault(row: Row) -> str | None:
    """What is wrong with the columns that envrl itself reads."""
    wrong = _wrong_type(row)
    return wrong and f"{wrong}; mend: correct the row"


def _refused(row: Row, reset: Callable[..., Any]) -> str | None:
    """Why a game cannot be played with what the row asks for."""
    try:
        reset(**{**row, "seed": row.get("seed") or 0})
    except (ValueError, TypeError, AttributeError) as error:
        return f"{error}; mend: correct the row"
    return None


def _wrong_type(row: Row) -> str | None:
    seed = row.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        return f"seed must be an integer (got {seed!r})"
    config = row.get("env_config")
    if config is not None and not isinstance(config, dict):
        return f"env_config must be an object (got {config!r:.60})"
    column = "prompt" if row.get("messages") is None else "messages"
    value = row.get(column)
    if value is None or (column == "prompt" and isinstance(value, str)):
        return None
    if not _are_messages(value):
        return f"{column} must be a list of objects with role and content, both text (got {value!r:.60})"
    strange = [message["role"] for message in value if message["role"] not in ROLES]
    return f"{column} has the role {strange[0]!r}; known: {', '.join(ROLES)}" if strange else None


def _are_messages(value: Any) -> bool:
    if not (value and isinstance(value, list)):
        return False
    return all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in value
    )
