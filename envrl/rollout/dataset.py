"""Datasets: where their rows come from, whose each row is, and what a row must hold.

A row names its environment in the column `env` or `environment`, or as `env_config.name`: a key of the
mixture, else the kind or target of one or more, else a name in ms-swift's registry if its classes play.
A row that names none belongs to the key whose dataset it stands in.
`messages`, or a `prompt` (text or messages), opens the conversation, `seed` is the seed of its group, and
all columns reach `reset` as they were written.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from envrl.env import environment_class
from envrl.env.compat.swift import envs as registry
from envrl.env.compat.swift.adapter import SwiftEnvironment
from envrl.env.compat.trl import TrlEnvironment
from envrl.errors import ConfigError
from envrl.shipped import shipped
from envrl.spec import EnvSpec

Row = dict[str, Any]

HELD_OUT_EVERY = 10
"""Of a dataset, every tenth row is evaluated and never trained on."""

_NOT_JSON = re.compile(r"\b(\w*binary\w*|timestamp|date\d+|time\d+|duration|\w*interval|decimal\d*)\b(?!:)")
"""Arrow's types that no line of episodes.jsonl could hold; field names end in a colon."""


def read_rows(dataset: str) -> list[Row]:
    """All rows of a .jsonl or .parquet file, or of a hub dataset's split `train`.

    JSON keeps its types. Arrow gives all rows the same fields, so nulls inside its structs are taken for
    keys that were never written. Read once while the file stays as it is. Raises ConfigError.
    """
    file = _file(dataset)
    try:
        if file is None:
            return _read(_hub, dataset, None)
        stamp = file.stat()
        return _read(_READERS.get(file.suffix, _json_lines), str(file), (stamp.st_mtime_ns, stamp.st_size))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {dataset!r}: {reason}") from error


def own_rows(key: str, envs: Mapping[str, EnvSpec]) -> list[Row]:
    """The rows of `env.<key>.dataset` that are this key's."""
    dataset, keys = envs[key].dataset, _keys_by_name(envs)
    assert dataset is not None
    free = _is_free(envs[key])
    return [row for row in read_rows(dataset) if key in _owners(named(row), key, keys, free=free)]


def split(rows: list[Row], *, held_out: bool) -> list[Row]:
    """The rows of one side; fewer than ten are for training alone, as the rules see to."""
    mine = [row for n, row in enumerate(rows) if (n % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == held_out]
    return mine or rows


def opening_messages(row: Row) -> list[dict[str, Any]] | None:
    """The messages with which a row opens the conversation; None where it leaves that to its environment."""
    opened = row.get("prompt") if row.get("messages") is None else row["messages"]
    return [{"role": "user", "content": opened}] if isinstance(opened, str) else opened


def named(row: Row) -> tuple[str, Any] | None:
    """The column in which a row names its environment, and the name; None where there is neither."""
    for column in ("env", "environment"):
        if row.get(column) is not None:
            return column, row[column]
    config = row.get("env_config")
    if isinstance(config, dict) and config.get("name") is not None:
        return "env_config.name", config["name"]
    return None


# --- what is wrong with a dataset -----------------------------------------------------------


def faults(
    key: str, envs: Mapping[str, EnvSpec], reset: Callable[..., Any], *, evaluated: bool
) -> Iterator[str]:
    """A line for all that is wrong with `env.<key>.dataset`, whose own rows go to this `reset`.

    Raises ConfigError where it cannot be read.
    """
    dataset, keys = envs[key].dataset, _keys_by_name(envs)
    assert dataset is not None
    sharing = {key for key, env in envs.items() if env.dataset and _same(env.dataset, dataset)}
    misfits: dict[tuple[str, ...], str | None] = {}
    own, free = 0, _is_free(envs[key])
    for number, row in enumerate(read_rows(dataset), 1):
        name = named(row)
        owners = _owners(name, key, keys, free=free)
        wrong = None if name is None or sharing & set(owners) else _lost(*name, owners, envs)
        if key in owners:
            own += 1
            columns = tuple(row)
            if columns not in misfits:
                misfits[columns] = _misfit(columns, reset)
            wrong = misfits[columns] or _fault(row)
        if wrong:
            yield f"row {number} of {dataset!r}: {wrong}"
    if own == 0:
        yield f"{dataset!r} has no rows for env.{key}"
    elif own < HELD_OUT_EVERY and evaluated:
        yield (
            f"every {HELD_OUT_EVERY}th row is held out for evaluation, and {dataset!r} has {own} rows for "
            f"env.{key}; mend: more rows, or stages=[...] without evaluate"
        )


def _keys_by_name(envs: Mapping[str, EnvSpec]) -> dict[str, list[str]]:
    """The keys that a name stands for. Of its meanings the last one here that fits counts."""
    keys: dict[str, list[str]] = {}
    for meaning in (_registered, _kind, lambda key, env: [key]):
        found: dict[str, list[str]] = {}
        for key, env in envs.items():
            for name in meaning(key, env):
                found.setdefault(name, []).append(key)
        keys |= found
    return keys


def _kind(key: str, env: EnvSpec) -> list[str]:
    """A target may be a name too, one that a plugin registered."""
    return [env.kind, *([env.target] if env.target and ":" not in env.target else [])]


def _registered(key: str, env: EnvSpec) -> list[str]:
    """All of ms-swift's registry where its classes play, since they let the row choose."""
    cls = environment_class(env.kind, env.target)
    return list(registry) if issubclass(cls, SwiftEnvironment) else []


def _owners(
    name: tuple[str, Any] | None, key: str, keys: Mapping[str, list[str]], *, free: bool
) -> list[str]:
    """The keys that a row of `env.<key>.dataset` belongs to; none where its name is unknown.

    A column `env` is `free` to mean something else to an environment that is written for TRL.
    """
    if name is None:
        return [key]
    column, value = name
    owners = keys.get(value, []) if isinstance(value, str) else []
    return owners or ([key] if free and column == "env" else [])


def _is_free(env: EnvSpec) -> bool:
    return issubclass(environment_class(env.kind, env.target), TrlEnvironment)


def _lost(column: str, name: Any, owners: list[str], envs: Mapping[str, EnvSpec]) -> str:
    """Why nobody would play a row."""
    if not owners:
        return f"{column} is {name!r}; known: {', '.join({**envs, **_keys_by_name(envs)})}"
    owner = owners[0]
    return f"{column} is {name!r}, and env.{owner}.dataset is {envs[owner].dataset!r}, not this one"


def _fault(row: Row) -> str | None:
    """What is wrong with the columns that envrl itself reads."""
    seed = row.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        return f"seed must be an integer (got {seed!r})"
    config = row.get("env_config")
    if config is not None and not isinstance(config, dict):
        return f"env_config must be an object (got {config!r:.60})"
    column = "prompt" if row.get("messages") is None else "messages"
    value = row.get(column)
    if value is None or (column == "prompt" and isinstance(value, str)) or _are_messages(value):
        return None
    return f"{column} must be a list of objects with role and content, both text (got {value!r:.60})"


def _misfit(columns: tuple[str, ...], reset: Callable[..., Any]) -> str | None:
    """Why `reset` cannot be called with these columns."""
    try:
        inspect.signature(reset).bind(None, **{"seed": 0, **dict.fromkeys(columns)})
    except TypeError as error:
        return f"{reset.__qualname__}: {error}; it is called with every column, so let it take **row"
    return None


def _are_messages(value: Any) -> bool:
    if not (value and isinstance(value, list)):
        return False
    return all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in value
    )


def _same(one: str, other: str) -> bool:
    return one == other or (_file(one) or one) == (_file(other) or other)


# --- reading ----------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _read(reader: Callable[[str], list[Row]], source: str, stamp: object) -> list[Row]:
    return reader(source)


def _file(dataset: str) -> Path | None:
    """The file that a dataset names; None for a folder or a name on the hub."""
    path = shipped(Path(dataset).expanduser())
    return path.resolve() if path.suffix in _READERS or path.is_file() else None


def _json_lines(file: str) -> list[Row]:
    with open(file, encoding="utf-8", newline="\n") as lines:
        return [_object(line, number) for number, line in enumerate(lines, 1) if not line.isspace()]


def _object(line: str, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is not a JSON object (got {line.strip()[:40]})")
    return row


def _parquet(file: str) -> list[Row]:
    from pyarrow.parquet import read_table  # a third of a second

    return _of_table(read_table(file))


def _hub(name: str) -> list[Row]:
    from datasets import load_dataset  # a second
    from datasets.exceptions import DatasetsError

    try:
        table = load_dataset(name, split="train").with_format("arrow")[:]
    except (OSError, ValueError, DatasetsError) as error:
        raise ValueError(f"no such file, and the hub gives no dataset: {error}; use a local file") from error
    return _of_table(table)


def _of_table(table: Any) -> list[Row]:
    for field in table.schema:
        if unfit := _NOT_JSON.search(str(field.type)):
            raise ValueError(f"column {field.name!r} holds {unfit[0]}; write it as text or numbers")
    return [{column: _written(value) for column, value in row.items()} for row in table.to_pylist()]


def _written(value: Any) -> Any:
    """A value without the nulls that Arrow puts where a struct lacks a key."""
    if isinstance(value, dict):
        return {key: _written(inner) for key, inner in value.items() if inner is not None}
    return [_written(inner) for inner in value] if isinstance(value, list) else value


_READERS: dict[str, Callable[[str], list[Row]]] = {
    ".jsonl": _json_lines,
    ".json": _json_lines,
    ".parquet": _parquet,
}
