"""The losses, and how far the engine's log-probs are from the trainer's. All pure."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Normalisation = Literal["dapo", "grpo", "bnpo", "dr_grpo"]

_FAR = 20.0
"""Log-ratios are cut here before `exp` where only a metric is at stake, so that it stays finite."""


def policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    normalisation: Normalisation = "dapo",
    normalizer: float | None = None,
    importance_weights_BT: Tensor | None = None,
    reference_logprobs_BT: Tensor | None = None,
    kl_coef: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to minimise, and metrics as means over the tokens of the mask.

    PPO's clipped surrogate per token, times the importance weight, plus `kl_coef` times the KL to the
    reference. Tokens, and whole rows, without a 1 in the mask count nowhere. `normalizer` divides the
    sum: give the whole batch's (`normalizer_of`) to each of its micro-batches, and their losses and
    gradients add up to the same total however the batch was cut. None takes it from this batch alone.

    Metrics: `clip_ratio/low`, `clip_ratio/high` and their union `clip_ratio/region`; with a reference,
    `kl_reference`. Raises ValueError for dr_grpo without a normalizer.

    Sources: PPO (arXiv:1707.06347); grpo: DeepSeekMath (arXiv:2402.03300); dapo and the two clips: DAPO
    (arXiv:2503.14476); dr_grpo: Dr. GRPO (arXiv:2503.20783).
    """
    mask_BT = mask_BT.to(logprobs_BT.dtype)
    ratio_BT = torch.exp((logprobs_BT - old_logprobs_BT) * mask_BT)
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    low_BT = (ratio_BT < 1 - clip_low) & (advantages_BT < 0)
    high_BT = (ratio_BT > 1 + clip_high) & (advantages_BT > 0)
    seen = {"clip_ratio/low": low_BT, "clip_ratio/high": high_BT, "clip_ratio/region": low_BT | high_BT}
    if importance_weights_BT is not None:
        loss_BT = loss_BT * importance_weights_BT
    if reference_logprobs_BT is not None:
        # Times the ratio, as in DeepSeek-V3.2 (arXiv:2512.02556): k3's own gradient is not that of the KL.
        kl_BT = _k3((reference_logprobs_BT - logprobs_BT) * mask_BT) * ratio_BT
        loss_BT = loss_BT + kl_coef * kl_BT
        seen["kl_reference"] = kl_BT.detach()
    if normalizer is None:
        normalizer = _own_normalizer(mask_BT, normalisation)
    loss = _summed(loss_BT, mask_BT, normalisation) / max(normalizer, 1.0)
    return loss, {name: masked_mean(value_BT, mask_BT) for name, value_BT in seen.items()}


def normalizer_of(normalisation: Normalisation, *, tokens: float, rows: float, max_tokens: int) -> float:
    """What the summed loss is divided by: rows, sampled tokens, or rows times the longest they may be.

    `tokens` and `rows` are those of the whole batch: all ranks' for dapo; for bnpo, which takes each
    rank's own mean, the rank's own tokens times the number of ranks. Rows without a sampled token are none.
    """
    match normalisation:
        case "grpo":
            return rows
        case "dr_grpo":
            return rows * max_tokens
        case "dapo" | "bnpo":
            return tokens


def supervised_loss(logprobs_BT: Tensor, mask_BT: Tensor, *, normalizer: float) -> Tensor:
    """Negative log-likelihood of the mask's tokens, divided by the whole batch's number of them."""
    return -(logprobs_BT * mask_BT).sum() / max(normalizer, 1.0)


def importance_weights(
    logprobs_BT: Tensor, engine_logprobs_BT: Tensor, mask_BT: Tensor, *, cap: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Trainer's over engine's probability of each sampled token, at most `cap`; 1 outside the mask.

    A token whose engine log-prob is NaN weighs 1. The weights carry no gradient. Metrics, over the
    mask's tokens: `mismatch/capped_fraction`, `mismatch/weight` (mean).

    Source: truncated importance sampling between rollout and trainer (Yao et al., "Your Efficient RL
    Framework Secretly Brings You Off-Policy RL Training", 2025).
    """
    ratio_BT = torch.exp(_log_ratio(logprobs_BT, engine_logprobs_BT, mask_BT))
    weights_BT = ratio_BT.clamp(max=cap)
    return weights_BT, {
        "mismatch/capped_fraction": masked_mean(ratio_BT > cap, mask_BT),
        "mismatch/weight": masked_mean(weights_BT, mask_BT),
    }


def mismatch_kl(logprobs_BT: Tensor, engine_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """KL from the engine's to the trainer's distribution, estimated on the engine's tokens.

    The k3 estimator, mean of r - 1 - log r with r the trainer's over the engine's probability: never
    negative, and unbiased as long as the engine samples from its whole distribution (top_p 1, top_k 0).

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    log_ratio_BT = _log_ratio(logprobs_BT, engine_logprobs_BT, mask_BT)
    return masked_mean(_k3(log_ratio_BT.clamp(-_FAR, _FAR)), mask_BT)


def masked_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the mask's tokens; 0 where there is none."""
    return (value_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1)


def _log_ratio(logprobs_BT: Tensor, engine_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    difference_BT = logprobs_BT.detach() - engine_logprobs_BT
    return torch.nan_to_num(difference_BT, nan=0.0).masked_fill(mask_BT == 0, 0.0)


def _k3(log_ratio_BT: Tensor) -> Tensor:
    return torch.expm1(log_ratio_BT) - log_ratio_BT


def _summed(loss_BT: Tensor, mask_BT: Tensor, normalisation: Normalisation) -> Tensor:
    rows_B = (loss_BT * mask_BT).sum(-1)
    if normalisation == "grpo":
        rows_B = rows_B / mask_BT.sum(-1).clamp(min=1)
    return rows_B.sum()


def _own_normalizer(mask_BT: Tensor, normalisation: Normalisation) -> float:
    if normalisation == "dr_grpo":
        raise ValueError("dr_grpo divides by rows times max_tokens: pass normalizer=normalizer_of(…)")
    tokens, rows = float(mask_BT.sum()), float(mask_BT.any(-1).sum())
    return normalizer_of(normalisation, tokens=tokens, rows=rows, max_tokens=0)
