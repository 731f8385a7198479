"""Which task comes next: exact mixture quotas, and one seed per group."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypedDict

from envrl.env import build
from envrl.seeds import derive, task_seed
from envrl.spec import Backend, EnvSpec


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


class Share(TypedDict):
    """Which of the groups are one process's."""

    rank: int
    world: int


def mixture(weights: Mapping[str, float]) -> Iterator[tuple[str, int]]:
    """The environments of all groups, in order, each with how often it came before.

    Every prefix holds each environment's share to within one group: the one that is furthest behind
    comes next.
    """
    share = {env: weight / sum(weights.values()) for env, weight in weights.items()}
    count = dict.fromkeys(share, 0)
    for done in itertools.count(1):
        env = max(share, key=lambda env: share[env] * done - count[env])
        yield env, count[env]
        count[env] += 1


class Tasks:
    """The groups of one stage, a pure function of the seed: nothing to save for a resume."""

    def __init__(self, envs: Mapping[str, EnvSpec], *, seed: int, stage: str, members: int) -> None:
        self._envs = envs
        self._seed = seed
        self._stage = stage
        self._members = members
        self._rows = {key: rows(key, spec, held_out=stage == "evaluate") for key, spec in envs.items()}
        self._mixture = mixture({key: spec.weight for key, spec in envs.items()})
        self._order: list[tuple[str, int]] = []
        self._epochs: dict[tuple[str, int], list[int]] = {}

    def groups(
        self, start: int, stop: int, *, rank: int = 0, world: int = 1, once: bool = False
    ) -> list[list[Task]]:
        """Groups start … stop-1, those of one rank: every world-th one.

        `once` leaves out the groups that would repeat a task of a finite task space.
        """
        self._order += itertools.islice(self._mixture, max(0, stop - len(self._order)))
        wanted = [index for index in range(start, stop) if not (once and self._repeats(index))]
        return [self._group(index) for index in wanted[rank::world]]

    def size(self, env: str) -> int | None:
        """How many different tasks an environment has; None where there is one for every seed."""
        rows = self._rows[env]
        return None if rows is None else len(rows)

    def _repeats(self, index: int) -> bool:
        env, earlier = self._order[index]
        size = self.size(env)
        return size is not None and earlier >= size

    def _group(self, index: int) -> list[Task]:
        env, earlier = self._order[index]
        row = dict(self._row(env, earlier))
        seed = row.pop("seed", None)
        if seed is None:
            seed = task_seed(self._seed, self._stage, index)
        messages = row.pop("messages", None)
        row.pop("environment", None)
        return [Task(env, seed, index, member, messages, row) for member in range(self._members)]

    def _row(self, env: str, turn: int) -> dict[str, Any]:
        """The environment's turn-th row: every epoch walks all rows in an order of its own."""
        rows = self._rows[env]
        if rows is None:
            return {}
        epoch, place = divmod(turn, len(rows))
        if (env, epoch) not in self._epochs:
            order = list(range(len(rows)))
            Random(derive(self._seed, self._stage, env, epoch)).shuffle(order)
            self._epochs[env, epoch] = order
        return rows[self._epochs[env, epoch][place]]


HELD_OUT_EVERY = 10
"""Of a dataset, every tenth row is evaluated and never trained on."""


def rows(key: str, spec: EnvSpec, *, held_out: bool) -> list[dict[str, Any]] | None:
    """The rows of one side, of the dataset or of the environment's own tasks; None where seeds make them."""
    if spec.dataset is not None:
        return split(read_rows(Path(spec.dataset)), held_out=held_out)
    if spec.backend in (Backend.URL, Backend.DOCKER):
        return None  # another's server may know none of our tasks
    return build(key, spec).tasks(held_out=held_out)


def split(rows: list[dict[str, Any]], *, held_out: bool) -> list[dict[str, Any]]:
    """The rows of one side; a dataset of fewer than ten rows is for training alone, as compose.py sees to."""
    mine = [row for n, row in enumerate(rows) if (n % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == held_out]
    return mine or rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines dataset; compose.py has judged it."""
    return [json.loads(line) for line in path.expanduser().read_text("utf-8").split("\n") if line.strip()]
