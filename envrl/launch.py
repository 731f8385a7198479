"""Which process of a launch this one is, from what torchrun and accelerate put into the environment."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")


def rank() -> int:
    """This process's place in the launch; 0 where it is the only one."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes the launch has."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process is the one of its launch that writes (rank 0)."""
    return rank() == 0


def from_main(value: T | None) -> T:
    """The main process's value, on every rank; the others give None."""
    told = [value]
    if world_size() > 1:
        import torch
        from accelerate import PartialState
        from accelerate.utils import broadcast_object_list

        PartialState(cpu=not torch.cuda.is_available())
        broadcast_object_list(told)
    (found,) = told
    assert found is not None
    return found
