"""Datasets: how their rows are read, which are held out, and how one opens the conversation.

`messages`, or a `prompt` (text or messages), opens the conversation, `seed` is the seed of its group, and
all columns reach `reset` as they were written. rows.py says whose each row is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from envrl.errors import ConfigError
from envrl.shipped import shipped

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
    if not re.search(r"\w", dataset):
        raise ConfigError(f"{dataset!r} names no dataset")
    file = local_file(dataset)
    try:
        if file is None:
            return _read(_hub, dataset, None)
        stamp = file.stat()
        return _read(_READERS.get(file.suffix, _json_lines), str(file), (stamp.st_mtime_ns, stamp.st_size))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {dataset!r}: {reason}") from error


def split(rows: list[Row], *, held_out: bool) -> list[Row]:
    """The rows of one side; of fewer than ten none is held out."""
    return [row for n, row in enumerate(rows) if (n % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == held_out]


def opening_messages(row: Row) -> list[dict[str, Any]] | None:
    """The messages with which a row opens the conversation; None where it leaves that to its environment."""
    opened = row.get("prompt") if row.get("messages") is None else row["messages"]
    return [{"role": "user", "content": opened}] if isinstance(opened, str) else opened


def same_dataset(one: str, other: str) -> bool:
    """Whether two spellings name one dataset."""
    return one == other or (local_file(one) or one) == (local_file(other) or other)


# --- reading ----------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _read(reader: Callable[[str], list[Row]], source: str, stamp: object) -> list[Row]:
    return reader(source)


def local_file(dataset: str) -> Path | None:
    """The file that a dataset names; None for a folder or a name on the hub."""
    path = shipped(Path(dataset).expanduser())
    return path.resolve() if path.suffix in _READERS or path.is_file() else None


def _json_lines(file: str) -> list[Row]:
    with open(file, encoding="utf-8", newline="\n") as lines:
        return [_object(line, number) for number, line in enumerate(lines, 1) if not line.isspace()]


def _object(line: str, number: int) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
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
        raise ValueError(f"no such file, and the hub gives no dataset: {error}") from error
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
