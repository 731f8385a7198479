"""metrics.jsonl and episodes.jsonl: what a run did, one JSON object per line.

A line ends in a newline once it is whole. Whatever follows the last newline is a write that was cut
short: readers leave it out, and the writer removes it before it appends.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envrl.errors import StageError


class Tracker:
    """Writes the two logs of a run directory. Every call appends whole lines and flushes them."""

    def __init__(self, directory: Path, *, writes: bool = True) -> None:
        """`writes` is False on every rank of a launch but the first."""
        self.metrics = directory / "metrics.jsonl"
        self.episodes = directory / "episodes.jsonl"
        self._writes = writes
        if writes:
            directory.mkdir(parents=True, exist_ok=True)
            _mend(self.metrics)
            _mend(self.episodes)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes the one line of a training step. What is not finite becomes null."""
        if self._writes:
            _append(self.metrics, [{"step": step, **metrics}])

    def record(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        stage: str,
        label: str | None = None,
        step: int | None = None,
    ) -> None:
        """Writes the episodes of one step or evaluation, in one go."""
        where = {"stage": stage, "label": label, "step": step}
        where = {key: value for key, value in where.items() if value is not None}
        if self._writes:
            _append(self.episodes, ({**where, **record} for record in records))

    def rewind(self, step: int) -> None:
        """Forgets all that came after a training step, so that a resumed run logs what an unbroken one does.

        Lines without a step (an evaluation before or after training) stay.
        """
        if self._writes:
            for path in (self.metrics, self.episodes):
                _keep(path, lambda line: line.get("step") is None or line["step"] <= step)

    def forget(self, stage: str, label: str | None = None) -> None:
        """Forgets a stage's episodes, for a stage that is about to be played again.

        Those of evaluations made in training, which carry a step, stay.
        """
        if self._writes:
            again = (stage, label, None)
            _keep(
                self.episodes, lambda line: (line.get("stage"), line.get("label"), line.get("step")) != again
            )


def iter_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, one by one; none where there is no file.

    A torn last line is left out. Raises StageError for any other line that is not JSON.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                if not line.endswith("\n"):
                    return
                raise StageError(f"{path}, line {number}: not JSON ({error})") from error
            yield value


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All of `iter_jsonl`."""
    return list(iter_jsonl(path))


def finite(value: Any) -> Any:
    """The value as plain JSON data: scalars of numpy and torch unwrapped, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is never seen half written."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", errors="replace")
    os.replace(partial, path)


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    dumped = [json.dumps(finite(line), ensure_ascii=False, allow_nan=False) + "\n" for line in lines]
    # A lone surrogate has no UTF-8; its backslash form is the JSON escape for it.
    with path.open("ab") as file:
        file.write("".join(dumped).encode("utf-8", "backslashreplace"))


def _mend(path: Path) -> None:
    """Cuts off what follows the last newline, without reading the whole file."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                start += newline + 1
                break
            end = start
        else:
            start = 0
        file.truncate(start)


def _keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrites a log with the lines that are wanted, byte for byte."""
    if not path.exists():
        return
    partial = path.with_name(f".{path.name}.partial")
    with path.open("rb") as lines, partial.open("wb") as kept:
        kept.writelines(line for line in lines if line.endswith(b"\n") and wanted(json.loads(line)))
    os.replace(partial, path)
