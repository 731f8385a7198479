"""Sampling: one token per row of logits, each row by its own settings and its own random number.

R counts rows, V the vocabulary. A row's token depends on its logits, settings and number alone, never
on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envrl.engine.base import Sampling


def sample(
    logits_RV: Tensor, settings: Sequence[Sampling], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Token ids and their log-probabilities under the scaled, filtered and renormalised distribution.

    `uniforms` are numbers in [0, 1); a row of temperature 0 ignores its own, takes the likeliest token
    and has log-probability 0. A log-probability that is not finite says that the logits were not.
    """
    greedy = [s.temperature == 0 for s in settings]
    if all(greedy):
        peaks_R, tokens_R = logits_RV.float().max(-1)
        return _lists(tokens_R, peaks_R - peaks_R)  # 0, or nan where the logits are not finite
    logprobs_RV = filtered(logits_RV.float(), settings).log_softmax(-1)
    cdf_RV = logprobs_RV.exp().cumsum(-1, dtype=torch.float64)
    drawn_R1 = torch.tensor(uniforms, dtype=torch.float64, device=cdf_RV.device)[:, None] * cdf_RV[:, -1:]
    # right=True passes over tokens of probability 0: their cdf does not rise above the token before
    tokens_R1 = torch.searchsorted(cdf_RV, drawn_R1, right=True).clamp_(max=cdf_RV.shape[-1] - 1)
    logprobs_R = logprobs_RV.gather(-1, tokens_R1)[:, 0]
    tokens_R = tokens_R1[:, 0]
    if any(greedy):
        greedy_R = torch.tensor(greedy, device=tokens_R.device)
        tokens_R = torch.where(greedy_R, logits_RV.argmax(-1), tokens_R)
        logprobs_R = torch.where(greedy_R, logprobs_R - logprobs_R, logprobs_R)
    return _lists(tokens_R, logprobs_R)


def filtered(logits_RV: Tensor, settings: Sequence[Sampling]) -> Tensor:
    """Logits divided by the temperature, with -inf where top-k, then top-p, then min-p leave a token out.

    The order and the meaning are those of transformers' `generate`; tokens tied with the last one kept
    are kept.
    """
    kinds = {(s.temperature, s.top_k, s.top_p, s.min_p) for s in settings}
    if any(temperature not in (0, 1) for temperature, *_ in kinds):
        logits_RV = logits_RV / _column([s.temperature or 1.0 for s in settings], logits_RV)
    if any(top_k > 0 or top_p < 1 for _, top_k, top_p, _ in kinds):
        logits_RV = _top(logits_RV, settings)
    if any(min_p > 0 for *_, min_p in kinds):
        floor_R1 = _column([s.min_p for s in settings], logits_RV).log() + logits_RV.amax(-1, keepdim=True)
        logits_RV = logits_RV.masked_fill(logits_RV < floor_R1, -torch.inf)
    return logits_RV


def _top(logits_RV: Tensor, settings: Sequence[Sampling]) -> Tensor:
    sorted_RV = logits_RV.sort(-1, descending=True).values
    size = sorted_RV.shape[-1]
    kept_R1 = torch.tensor([[min(s.top_k or size, size)] for s in settings], device=logits_RV.device)
    ranks_V = torch.arange(size, device=logits_RV.device)
    probs_RV = sorted_RV.masked_fill(ranks_V >= kept_R1, -torch.inf).softmax(-1)
    before_RV = probs_RV.cumsum(-1) - probs_RV
    # a row without top-p must not lose its tail to rounding
    top_p_R1 = _column([s.top_p if s.top_p < 1 else torch.inf for s in settings], logits_RV)
    kept_R1 = torch.minimum(kept_R1, (before_RV < top_p_R1).sum(-1, keepdim=True)).clamp_(min=1)
    last_R1 = sorted_RV.gather(-1, kept_R1 - 1)
    return logits_RV.masked_fill(logits_RV < last_R1, -torch.inf)


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _lists(tokens_R: Tensor, logprobs_R: Tensor) -> tuple[list[int], list[float]]:
    # one transfer from the device; float64 holds any token id exactly
    tokens, logprobs = torch.stack((tokens_R.double(), logprobs_R.double())).tolist()
    return [int(token) for token in tokens], logprobs
