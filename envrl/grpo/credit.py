"""From the rewards of a step's episodes to the advantages of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from envrl.grpo.advantages import deviation, group_advantages, turn_advantages
from envrl.rollout.scoring import terms_of
from envrl.rollout.trajectory import Episode
from envrl.rollout.transcript import TokenRow
from envrl.spec import RunSpec

Advantage = float | list[float]
"""Of an episode: one for all its sampled tokens, or one per turn."""


def credit(
    groups: Sequence[Sequence[Episode]],
    spec: RunSpec,
    *,
    gather: Callable[[list[float]], list[float]],
) -> list[list[Advantage]]:
    """What every episode of this rank's groups gets, in their order; 0 where it is unscored.

    `gather` joins a list over all ranks; scale_rewards=batch asks it for the rewards.
    """
    scale: Literal["group", "none"] | float
    by_turn = spec.grpo.credit == "turn"
    paid = [[_paid(episode, spec, by_turn=by_turn) for episode in group] for group in groups]
    if spec.grpo.scale_rewards == "batch":
        own = [reward for group in paid for rewards in group for reward in rewards if reward is not None]
        scale = deviation(gather(own))
    else:
        scale = spec.grpo.scale_rewards
    if by_turn:
        return [list(turn_advantages(rewards_GK, scale=scale)) for rewards_GK in paid]
    return [list(group_advantages([reward for (reward,) in group], scale=scale)) for group in paid]


def is_flat_group(advantages_G: Iterable[Advantage]) -> bool:
    """Whether every advantage of the group is 0, so that it has nothing to teach."""
    return not any(any(a) if isinstance(a, list) else a for a in advantages_G)


def token_rows(
    groups: Sequence[Sequence[Episode]], advantages: Sequence[Sequence[Advantage]]
) -> list[TokenRow]:
    """The rows of all episodes that have a score; the others are trained on by nobody."""
    return [
        replace(row, flat=is_flat_group(advantages_G))
        for group, advantages_G in zip(groups, advantages, strict=True)
        for episode, advantage in zip(group, advantages_G, strict=True)
        if episode.reward is not None
        for row in episode.rows(advantage)
    ]


def overlong_penalty(tokens: int, *, max_tokens: int, buffer: float) -> float:
    """0, and in the last `buffer` (a share) of `max_tokens` a line that falls to -1 at its end.

    Source: DAPO (arXiv:2503.14476), section 3.4, soft overlong punishment.
    """
    excess = tokens - max_tokens * (1 - buffer)
    return -min(excess / (max_tokens * buffer), 1.0) if buffer and excess > 0 else 0.0


def penalties(groups: Iterable[Iterable[Episode]], spec: RunSpec) -> list[float]:
    """The overlong penalty of every episode."""
    return [_penalty(episode, spec) for group in groups for episode in group]


def _penalty(episode: Episode, spec: RunSpec) -> float:
    return overlong_penalty(
        episode.length, max_tokens=spec.scheduler.max_tokens, buffer=spec.grpo.overlong_buffer
    )


def _paid(episode: Episode, spec: RunSpec, *, by_turn: bool) -> list[float | None]:
    """The reward with the overlong penalty, whole or by turn; None where there is none."""
    if episode.reward is None:
        return [None]
    whole = episode.reward + _penalty(episode, spec)
    if not by_turn:
        return [whole]
    weight = spec.reward.weight_of(terms_of(spec, episode.task.env))["env"]
    return turn_rewards([turn.reward for turn in episode.turns], whole=whole, weight=weight)


def turn_rewards(env_rewards_K: Sequence[float | None], *, whole: float, weight: float) -> list[float | None]:
    """The environment's reward by turn, times its weight; what is left of the whole is the last turn's.

    What is left are other terms, which judge the episode as a whole, and the overlong penalty.
    """
    rewards_K = [None if reward is None else weight * reward for reward in env_rewards_K]
    left = whole - sum(reward for reward in rewards_K if reward is not None)
    if rewards_K and abs(left) > 1e-9:
        rewards_K[-1] = (rewards_K[-1] or 0.0) + left
    return rewards_K
