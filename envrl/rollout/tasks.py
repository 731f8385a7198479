"""Which task comes next: exact mixture quotas, and one seed per group."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypedDict

from envrl.env import build
from envrl.errors import ConfigError
from envrl.rollout.dataset import Row, opening_messages, split
from envrl.rollout.rows import own_rows
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
    row: Row = field(default_factory=dict)
    """All of the row's columns; they go to reset(**row)."""


class Share(TypedDict):
    """Which of the groups are one process's."""

    rank: int
    world: int


def mixture(weights: Mapping[str, float]) -> Iterator[tuple[str, int]]:
    """The environments of all groups, in order, each with how often it came before.

    Largest remainder, one group at a time: the one that is furthest behind its share comes next, and what
    it still lacks is carried over. Where all shares of a prefix are whole numbers, they are met exactly;
    between, two or three environments are never a whole group away from theirs.
    """
    share = {env: weight / sum(weights.values()) for env, weight in weights.items()}
    count = dict.fromkeys(share, 0)
    for done in itertools.count(1):
        env = max(share, key=lambda env: share[env] * done - count[env])
        yield env, count[env]
        count[env] += 1


class Tasks:
    """The groups of one stage, a pure function of the seed: nothing to save for a resume."""

    def __init__(
        self,
        envs: Mapping[str, EnvSpec],
        *,
        seed: int,
        stage: str,
        members: int,
        only: Collection[str] | None = None,
    ) -> None:
        """Of the whole mixture, which says whose a dataset's row is; `only` names the keys to play."""
        keys = [key for key in envs if only is None or key in only]
        self._seed = seed
        self._stage = stage
        self._members = members
        self._rows = {key: rows(key, envs, held_out=stage == "evaluate") for key in keys}
        self._mixture = mixture({key: envs[key].weight for key in keys})
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
        row = self._row(env, earlier)
        if row.get("seed") is None:
            row = {column: value for column, value in row.items() if column != "seed"}
        seed = row.get("seed", task_seed(self._seed, self._stage, index))
        messages = opening_messages(row)
        return [Task(env, seed, index, member, messages, row) for member in range(self._members)]

    def _row(self, env: str, turn: int) -> Row:
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


def rows(key: str, envs: Mapping[str, EnvSpec], *, held_out: bool) -> list[Row] | None:
    """The rows of one side, of the dataset or of the environment's own tasks; None where seeds make them.

    Raises ConfigError where that side has none.
    """
    spec = envs[key]
    if spec.dataset is None and spec.backend in (Backend.URL, Backend.DOCKER):
        return None  # another's server may know none of our tasks
    if spec.dataset is None:
        listed = build(key, spec).tasks(held_out=held_out)
    else:
        listed = split(own_rows(key, envs), held_out=held_out)
    if listed is not None and not listed:
        raise ConfigError(f"env.{key}: has no task {'that is held out' if held_out else 'to train on'}")
    return listed
