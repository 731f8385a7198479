"""Group-relative advantages: how much better an episode did than the others at the same task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, stdev
from typing import Literal

_EPSILON = 1e-4
"""Keeps groups of nearly equal rewards from being blown up; the value of the usual implementations."""


def group_advantages(
    rewards_G: Sequence[float | None],
    *,
    scale: Literal["group", "none"] | float = "group",
    tolerance: float = 1e-6,
) -> list[float]:
    """One advantage per member: its reward minus the group's mean, divided by the group's std if scaled.

    A number as `scale` is divided by in place of that std: the whole batch's, say (`deviation`). None
    (failed or unscored) stays out of mean and std and gets 0. A flat group gets 0 throughout. The std is
    the sample's (divided by n - 1), and 1e-4 is added to it. Raises ValueError for NaN or infinity.

    Sources: DeepSeekMath (arXiv:2402.03300), section 4.1.2; scale="none": Dr. GRPO (arXiv:2503.20783);
    the batch's std: Lite PPO (arXiv:2508.08221).
    """
    if is_flat(rewards_G, tolerance=tolerance):
        return [0.0] * len(rewards_G)
    live = [reward for reward in rewards_G if reward is not None]
    mean, width = fmean(live), 1.0
    if scale != "none":
        width = (deviation(live) if scale == "group" else scale) + _EPSILON
    return [0.0 if reward is None else (reward - mean) / width for reward in rewards_G]


def turn_advantages(
    rewards_GK: Sequence[Sequence[float | None]],
    *,
    scale: Literal["group", "none"] | float = "group",
    tolerance: float = 1e-6,
) -> list[list[float]]:
    """One advantage per turn: the sum of the normalised rewards of this turn and the later ones.

    Rewards are normalised as by `group_advantages`, over all turns of the group's members together. K
    counts the turns of a member, and members may differ in it; None is no reward in this turn.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.3, process supervision.
    """
    together = [reward for rewards_K in rewards_GK for reward in rewards_K]
    normalised = iter(group_advantages(together, scale=scale, tolerance=tolerance))
    per_turn_GK = [[next(normalised) for _ in rewards_K] for rewards_K in rewards_GK]
    return [list(accumulate(turns_K[::-1]))[::-1] for turns_K in per_turn_GK]


def is_flat(rewards_G: Sequence[float | None], *, tolerance: float = 1e-6) -> bool:
    """Whether the live members' rewards are all equal up to `tolerance`, so that nothing can be learned.

    True also for fewer than two live members. Raises ValueError for NaN or infinity.
    """
    for member, reward in enumerate(rewards_G):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"reward of group member {member} is {reward}; it must be finite, or None")
    live = [reward for reward in rewards_G if reward is not None]
    return not live or max(live) - min(live) <= tolerance


def deviation(rewards: Sequence[float]) -> float:
    """The sample's standard deviation (divided by n - 1); 0 for fewer than two."""
    return stdev(rewards) if len(rewards) > 1 else 0.0
