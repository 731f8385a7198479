"""Group-relative advantages: how much better an episode did than the others at the same task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

_EPSILON = 1e-4
"""Keeps groups of nearly equal rewards from being blown up; the value of the usual implementations."""


def group_advantages(
    rewards_G: Sequence[float | None],
    *,
    scale: Literal["group", "none"] = "group",
    tolerance: float = 1e-6,
) -> list[float]:
    """One advantage per member: its reward minus the group's mean, divided by the group's std if scaled.

    None (failed or unscored) stays out of mean and std and gets 0. A flat group gets 0 throughout. The
    std is the sample's (divided by n - 1), and 1e-4 is added to it. Raises ValueError for NaN or infinity.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.2; scale="none" is Dr. GRPO (arXiv:2503.20783).
    """
    if is_flat(rewards_G, tolerance=tolerance):
        return [0.0] * len(rewards_G)
    live = [reward for reward in rewards_G if reward is not None]
    mean = fmean(live)
    width = stdev(live) + _EPSILON if scale == "group" else 1.0
    return [0.0 if reward is None else (reward - mean) / width for reward in rewards_G]


def is_flat(rewards_G: Sequence[float | None], *, tolerance: float = 1e-6) -> bool:
    """Whether the live members' rewards are all equal up to `tolerance`, so that nothing can be learned.

    True also for fewer than two live members. Raises ValueError for NaN or infinity.
    """
    for member, reward in enumerate(rewards_G):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"reward of group member {member} is {reward}; it must be finite, or None")
    live = [reward for reward in rewards_G if reward is not None]
    return not live or max(live) - min(live) <= tolerance
