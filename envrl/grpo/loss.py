"""The losses: one table of variants, and the small pure functions that it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Loss = Literal["grpo", "dapo", "dr_grpo", "bnpo", "gspo", "cispo"]


class Clip(NamedTuple):
    """How far the ratio to the old policy may go: from 1 - low to 1 + high, and never above delta."""

    low: float
    high: float
    delta: float = math.inf


def token_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """New over old probability of each token. Source: PPO (arXiv:1707.06347)."""
    return torch.exp(log_ratio_BT)


def sequence_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The geometric mean of a row's token ratios, at each of its tokens. Source: GSPO (arXiv:2507.18071)."""
    mean_B1 = log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return torch.exp(mean_B1).expand_as(log_ratio_BT)


def clipped(ratio_BT: Tensor, advantages_BT: Tensor, logprobs_BT: Tensor, clip: Clip) -> Tensor:
    """PPO's surrogate to maximise: beyond the clip there is no gradient.

    `delta` bounds the ratio also where the advantage is negative, which the clip leaves unbounded.
    Sources: PPO (arXiv:1707.06347); two clips: DAPO (arXiv:2503.14476); delta: INTELLECT-2
    (arXiv:2505.07291).
    """
    bounded_BT = ratio_BT.clamp(1 - clip.low, 1 + clip.high)
    ratio_BT = ratio_BT.clamp(max=clip.delta)
    return torch.minimum(ratio_BT * advantages_BT, bounded_BT * advantages_BT)


def weighted(ratio_BT: Tensor, advantages_BT: Tensor, logprobs_BT: Tensor, clip: Clip) -> Tensor:
    """CISPO's surrogate to maximise: the clipped ratio is a weight, and no token loses its gradient.

    Source: MiniMax-M1 (arXiv:2506.13585).
    """
    return ratio_BT.detach().clamp(1 - clip.low, 1 + clip.high) * advantages_BT * logprobs_BT


@dataclass(frozen=True)
class Variant:
    """What sets one loss apart from the others."""

    surrogate: Callable[[Tensor, Tensor, Tensor, Clip], Tensor]
    ratio: Callable[[Tensor, Tensor], Tensor]
    mean: Literal["tokens", "rank's tokens", "rows", "rows x max_tokens"]
    """What the sum is divided by; with `rows` each row is first divided by its own tokens."""


VARIANTS: dict[Loss, Variant] = {
    "grpo": Variant(clipped, token_ratio, "rows"),  # DeepSeekMath, arXiv:2402.03300
    "dapo": Variant(clipped, token_ratio, "tokens"),  # DAPO, arXiv:2503.14476
    "dr_grpo": Variant(clipped, token_ratio, "rows x max_tokens"),  # Dr. GRPO, arXiv:2503.20783
    "bnpo": Variant(clipped, token_ratio, "rank's tokens"),  # each rank's own mean, as TRL's of this name
    "gspo": Variant(clipped, sequence_ratio, "rows"),  # GSPO, arXiv:2507.18071
    "cispo": Variant(weighted, token_ratio, "tokens"),  # MiniMax-M1, arXiv:2506.13585
}


def policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_delta: float | None = None,
    loss: Loss = "dapo",
    normalizer: float | None = None,
    importance_weights_BT: Tensor | None = None,
    reference_logprobs_BT: Tensor | None = None,
    kl_coef: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to minimise, and metrics as means over the tokens of the mask.

    The variant's surrogate, times the importance weight, plus `kl_coef` times the KL to the reference.
    Tokens, and whole rows, without a 1 in the mask count nowhere. `normalizer` divides the sum: give the
    whole batch's (`normalizer_of`) to each of its micro-batches, and their losses and gradients add up to
    the same total however the batch was cut. None takes it from this batch alone.

    Metrics: `clip_ratio/low`, `clip_ratio/high` and their union `clip_ratio/region`; with a delta,
    `clip_ratio/delta`; with a reference, `kl_reference`. Raises ValueError for dr_grpo without a normalizer.
    The sources stand at the variants.
    """
    variant, clip = VARIANTS[loss], Clip(clip_low, clip_high, clip_delta or math.inf)
    mask_BT = mask_BT.to(logprobs_BT.dtype)
    ratio_BT = variant.ratio((logprobs_BT - old_logprobs_BT) * mask_BT, mask_BT)
    loss_BT = -variant.surrogate(ratio_BT, advantages_BT, logprobs_BT, clip)
    seen = _beyond(ratio_BT.detach(), advantages_BT, clip)
    if importance_weights_BT is not None:
        loss_BT = loss_BT * importance_weights_BT
    if reference_logprobs_BT is not None:
        # Times the ratio, as in DeepSeek-V3.2 (arXiv:2512.02556): k3's own gradient is not that of the KL.
        kl_BT = k3((reference_logprobs_BT - logprobs_BT) * mask_BT) * ratio_BT
        loss_BT = loss_BT + kl_coef * kl_BT
        seen["kl_reference"] = kl_BT.detach()
    if normalizer is None:
        normalizer = _own_normalizer(mask_BT, loss)
    rows_B = (loss_BT * mask_BT).sum(-1)
    if variant.mean == "rows":
        rows_B = rows_B / mask_BT.sum(-1).clamp(min=1)
    metrics = {name: masked_mean(value_BT, mask_BT) for name, value_BT in seen.items()}
    return rows_B.sum() / max(normalizer, 1.0), metrics


def normalizer_of(
    loss: Loss, *, tokens: float, rank_tokens: float, ranks: int, rows: float, max_tokens: int
) -> float:
    """What the summed loss is divided by: rows, sampled tokens, or rows times the longest they may be.

    `tokens` and `rows` are those of the whole batch over all ranks, `rank_tokens` this rank's own. As losses
    are summed over ranks, the mean of each rank's own mean divides by its tokens times the number of ranks.
    Rows without a sampled token are none.
    """
    match VARIANTS[loss].mean:
        case "rows":
            return rows
        case "rows x max_tokens":
            return rows * max_tokens
        case "tokens":
            return tokens
        case "rank's tokens":
            return rank_tokens * ranks


def entropy_bonus(entropy_BT: Tensor, mask_BT: Tensor, *, tokens: float) -> Tensor:
    """Mean entropy of the tokens, of which a multiple is taken off the loss; `tokens` is the whole batch's.

    Source: A3C (arXiv:1602.01783), section 4.
    """
    return (entropy_BT * mask_BT).sum() / max(tokens, 1.0)


def supervised_loss(logprobs_BT: Tensor, mask_BT: Tensor, *, normalizer: float) -> Tensor:
    """Negative log-likelihood of the mask's tokens, divided by the whole batch's number of them."""
    return -(logprobs_BT * mask_BT).sum() / max(normalizer, 1.0)


def k3(log_ratio: Tensor) -> Tensor:
    """r - 1 - log r, whose mean over samples of p, with r = q/p, is the KL from p to q; never negative.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    return torch.expm1(log_ratio) - log_ratio


def masked_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the mask's tokens; 0 where there is none."""
    return (value_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1)


def _beyond(ratio_BT: Tensor, advantages_BT: Tensor, clip: Clip) -> dict[str, Tensor]:
    """Which tokens the clip binds, by the name of the metric."""
    low_BT = (ratio_BT < 1 - clip.low) & (advantages_BT < 0)
    high_BT = (ratio_BT > 1 + clip.high) & (advantages_BT > 0)
    beyond = {"clip_ratio/low": low_BT, "clip_ratio/high": high_BT, "clip_ratio/region": low_BT | high_BT}
    if clip.delta < math.inf:
        beyond["clip_ratio/delta"] = (ratio_BT > clip.delta) & (advantages_BT < 0)
    return beyond


def _own_normalizer(mask_BT: Tensor, loss: Loss) -> float:
    if VARIANTS[loss].mean == "rows x max_tokens":
        raise ValueError(f"{loss} divides by rows times max_tokens: pass normalizer=normalizer_of(…)")
    tokens, rows = float(mask_BT.sum()), float(mask_BT.any(-1).sum())
    return normalizer_of(loss, tokens=tokens, rank_tokens=tokens, ranks=1, rows=rows, max_tokens=0)
