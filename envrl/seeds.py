"""Every random number of a run derives from `seed` through one hash."""

from __future__ import annotations

from hashlib import sha256

_HELD_OUT = 1 << 30


def derive(*parts: int | str) -> int:
    """A seed in [0, 2**30) for a path of names and indices, equal on every machine and Python."""
    digest = sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4]) % _HELD_OUT


def task_seed(seed: int, stage: str, group: int) -> int:
    """The environment seed that all members of a group share.

    Evaluation draws from [2**30, 2**31) and everything else from below, so no task that is
    evaluated was ever trained on.
    """
    return derive(seed, stage, group) + (_HELD_OUT if stage == "evaluate" else 0)


def is_held_out(seed: int) -> bool:
    """Whether it is the seed of a task that is evaluated and never trained on."""
    return seed >= _HELD_OUT
