"""Which process of a launch this one is, from what torchrun and accelerate put into the environment."""

from __future__ import annotations

import os


def rank() -> int:
    """This process's place in the launch; 0 where it is the only one."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes the launch has."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process is the one of its launch that writes (rank 0)."""
    return rank() == 0
