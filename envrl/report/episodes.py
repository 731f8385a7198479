"""Which episodes of a run are worth a look, and how their messages are shown."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from envrl.tracking import iter_jsonl

Record = Mapping[str, Any]
Task = tuple[str, int, int]
"""Environment, seed, and the member of its group."""

_PER_OUTCOME = 2
_LONGEST = 4000
"""Characters of one message that are shown."""


@dataclass
class Overview:
    """What one pass over episodes.jsonl keeps."""

    outcomes: defaultdict[str, dict[Task, bool | None]] = field(default_factory=lambda: defaultdict(dict))
    """Success by label and task, for the evaluations around training."""
    errors: Counter[str] = field(default_factory=Counter)
    """Episodes that ended as `error`, by message."""
    latest: deque[Record] = field(default_factory=lambda: deque(maxlen=2 * _PER_OUTCOME))


def overview(path: Path) -> Overview:
    """Reads episodes.jsonl once."""
    seen = Overview()
    for record in iter_jsonl(path):
        seen.latest.append(record)
        if record["stop"] == "error":
            seen.errors[record.get("error") or "no message"] += 1
        if _around_training(record):
            seen.outcomes[record["label"]][_task(record)] = record["success"]
    return seen


def sample(path: Path, seen: Overview) -> list[Record]:
    """A few tasks per pair of outcomes, before and after training, side by side; else the latest episodes."""
    labels = list(seen.outcomes)[-2:]
    tasks = _telling(seen, labels)
    if not tasks:
        return list(seen.latest)
    found: dict[tuple[Task, str], Record | None] = dict.fromkeys(product(tasks, labels))
    for record in filter(_around_training, iter_jsonl(path)):
        if (pair := (_task(record), record["label"])) in found:
            found[pair] = record
    return [record for record in found.values() if record is not None]


def message_text(message: Mapping[str, Any]) -> str:
    """A message's content as text, structured parts as JSON; what is very long is cut and says so."""
    parts = [message.get("content") or "", *(message.get("tool_calls") or ())]
    texts = [part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts]
    text = "\n".join(filter(None, texts))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text) - _LONGEST} more characters"


def _telling(seen: Overview, labels: list[str]) -> list[Task]:
    """Tasks by how their outcome went, newly solved ones first."""
    groups: defaultdict[tuple[bool | None, ...], list[Task]] = defaultdict(list)
    for task in seen.outcomes[labels[-1]] if labels else ():
        outcome = tuple(seen.outcomes[label].get(task) for label in labels)
        if len(groups[outcome]) < _PER_OUTCOME:
            groups[outcome].append(task)
    ranked = sorted(groups, key=lambda outcome: (outcome[-1] is not True, outcome[0] is True))
    return [task for outcome in ranked for task in groups[outcome]]


def _around_training(record: Record) -> bool:
    return record.get("stage") == "evaluate" and "label" in record and record.get("step") is None


def _task(record: Record) -> Task:
    return record["env"], record["seed"], record.get("member", 0)
