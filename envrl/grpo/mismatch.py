"""How far the engine's log-probs are from the trainer's, and what is done about it. All pure."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from envrl.grpo.loss import k3, masked_mean

_FAR = 20.0
"""Log-ratios are cut here before `exp` where only a metric is at stake, so that it stays finite."""


def importance_weights(
    logprobs_BT: Tensor,
    engine_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    cap: float,
    floor: float = 0.0,
    level: Literal["token", "sequence"] = "token",
    beyond: Literal["truncate", "mask"] = "truncate",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Trainer's over engine's probability of what was sampled; 1 outside the mask. No gradient.

    Per token, or per row: the product of its tokens' ratios, at each of them. Beyond `floor` and `cap` a
    weight is set to the bound, or to 0. A token whose engine log-prob is NaN has the ratio 1. Metrics, over
    the mask's tokens: `mismatch/touched_fraction` (beyond the bounds), `mismatch/weight` (mean).

    Sources: truncation: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL
    Training" (2025); masking by token: IcePop (Ling team, 2025, arXiv:2510.18855); by sequence: Liu et al.,
    "When Speed Kills Stability" (2025).
    """
    log_ratio_BT = _log_ratio(logprobs_BT, engine_logprobs_BT, mask_BT)
    if level == "sequence":
        log_ratio_BT = log_ratio_BT.sum(-1, keepdim=True).expand_as(log_ratio_BT)
    ratio_BT = torch.exp(log_ratio_BT).masked_fill(mask_BT == 0, 1.0)
    touched_BT = (ratio_BT < floor) | (ratio_BT > cap)
    bounded_BT = ratio_BT.clamp(floor, cap) if beyond == "truncate" else ratio_BT.masked_fill(touched_BT, 0.0)
    return bounded_BT, {
        "mismatch/touched_fraction": masked_mean(touched_BT, mask_BT),
        "mismatch/weight": masked_mean(bounded_BT, mask_BT),
    }


def off_policy_mask(
    logprobs_BT: Tensor,
    engine_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    threshold: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """0 on tokens of negative advantage in rows that the policy has left behind, else 1. No gradient.

    A row is left behind when the mean of log(engine's / policy's probability) over its tokens is above
    `threshold`, in nats. Metric: `off_policy/masked_fraction` of the mask's tokens.

    Source: DeepSeek-V3.2 (arXiv:2512.02556), section 3.1, off-policy sequence masking.
    """
    log_ratio_BT = _log_ratio(logprobs_BT, engine_logprobs_BT, mask_BT)
    drift_B1 = -log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    left_BT = (advantages_BT < 0) & (drift_B1 > threshold)
    return (~left_BT).to(logprobs_BT.dtype), {"off_policy/masked_fraction": masked_mean(left_BT, mask_BT)}


def mismatch_kl(logprobs_BT: Tensor, engine_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """KL from the engine's to the trainer's distribution, by k3 on the engine's tokens.

    Unbiased as long as the engine samples from its whole distribution (top_p 1, top_k 0, min_p 0).
    """
    log_ratio_BT = _log_ratio(logprobs_BT, engine_logprobs_BT, mask_BT)
    return masked_mean(k3(log_ratio_BT.clamp(-_FAR, _FAR)), mask_BT)


def _log_ratio(logprobs_BT: Tensor, engine_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    difference_BT = logprobs_BT.detach() - engine_logprobs_BT
    return torch.nan_to_num(difference_BT, nan=0.0).masked_fill(mask_BT == 0, 0.0)
