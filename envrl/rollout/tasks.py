"""Which task comes next: exact mixture quotas, and one seed per group."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from envrl.seeds import derive, task_seed
from envrl.spec import EnvSpec


@dataclass(frozen=True)
class Task:
    """What one episode is asked to do. The members of a group differ in `member` alone."""

    env: str
    """Key of RunSpec.env."""
    seed: int
    group: int
    """Index of its group in the stage, over all steps and ranks."""
    member: int
    messages: list[dict[str, Any]] | None = None
    """A dataset row's own opening messages."""
    row: dict[str, Any] = field(default_factory=dict)
    """The rest of the row; goes to reset(**row)."""


def mixture(weights: Mapping[str, float], total: int) -> list[str]:
    """The environments of the first `total` groups, in order.

    Every prefix holds each environment's share to within one group: the one that is furthest behind
    comes next. A longer schedule starts with the shorter one.
    """
    share = {env: weight / sum(weights.values()) for env, weight in weights.items()}
    count: Counter[str] = Counter()
    order: list[str] = []
    for done in range(1, total + 1):
        env = max(share, key=lambda env: share[env] * done - count[env])
        count[env] += 1
        order.append(env)
    return order


class Tasks:
    """The groups of one stage, a pure function of the seed: nothing to save for a resume."""

    def __init__(self, envs: Mapping[str, EnvSpec], *, seed: int, stage: str, members: int) -> None:
        self._envs = envs
        self._seed = seed
        self._stage = stage
        self._members = members
        self._rows = {key: read_rows(spec.dataset) for key, spec in envs.items() if spec.dataset}
        self._order: list[str] = []

    def groups(self, start: int, stop: int, *, rank: int = 0, world: int = 1) -> list[list[Task]]:
        """Groups start … stop-1, those of one rank: every world-th one."""
        if len(self._order) < stop:
            self._order = mixture({key: spec.weight for key, spec in self._envs.items()}, stop)
        return [self._group(index) for index in range(start, stop) if (index - start) % world == rank]

    def _group(self, index: int) -> list[Task]:
        env = self._order[index]
        row = dict(self._row(env, self._order[:index].count(env)))
        seed = row.pop("seed", None)
        if seed is None:
            seed = task_seed(self._seed, self._stage, index)
        messages = row.pop("messages", None)
        row.pop("environment", None)
        return [Task(env, seed, index, member, messages, row) for member in range(self._members)]

    def _row(self, env: str, turn: int) -> dict[str, Any]:
        """The environment's turn-th row: every epoch walks all rows in an order of its own."""
        rows = self._rows.get(env)
        if not rows:
            return {}
        epoch, place = divmod(turn, len(rows))
        order = list(range(len(rows)))
        Random(derive(self._seed, self._stage, env, epoch)).shuffle(order)
        return rows[order[place]]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines dataset; compose.py has judged it."""
    return [json.loads(line) for line in path.expanduser().read_text("utf-8").split("\n") if line.strip()]
