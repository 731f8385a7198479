from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from envrl.grpo import policy_loss
from envrl.grpo.loss import VARIANTS, normalizer_of, supervised_loss
from envrl.grpo.mismatch import importance_weights, mismatch_kl

CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
LOSSES = list(VARIANTS)


def ragged(rows: int = 5, width: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths_B = torch.randint(3, width + 1, (rows, 1), generator=generator)
    mask_BT = (torch.arange(width) < lengths_B) & (torch.arange(width) % 4 != 0)
    old_BT = -3 * torch.rand(rows, width, generator=generator)
    logprobs_BT = old_BT + torch.rand(rows, width, generator=generator) - 0.5
    advantages_BT = torch.randn(rows, 1, generator=generator).expand(rows, width)
    return logprobs_BT, old_BT, advantages_BT, mask_BT


def loss_of(*tensors: Tensor, loss: Any) -> Tensor:
    mask_BT = tensors[3]
    tokens, rows = float(mask_BT.sum()), float(mask_BT.any(-1).sum())
    normalizer = normalizer_of(loss, tokens=tokens, rank_tokens=tokens, ranks=1, rows=rows, max_tokens=12)
    return policy_loss(*tensors, loss=loss, normalizer=normalizer, **CLIPS)[0]


def test_what_each_loss_is_divided_by() -> None:
    sizes: Any = {"tokens": 50.0, "rank_tokens": 20.0, "ranks": 3, "rows": 6.0, "max_tokens": 12}
    expected = {"grpo": 6, "gspo": 6, "dapo": 50, "cispo": 50, "dr_grpo": 72, "bnpo": 60}
    assert {loss: normalizer_of(loss, **sizes) for loss in LOSSES} == expected


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("k", [1, 4])
def test_masked_truncated_rows_change_nothing(name: Any, k: int) -> None:
    """Numerator and denominator share a mask (trl#6369)."""
    tensors = ragged()
    more = ragged(rows=k)
    masked = (*more[:3], torch.zeros_like(more[3]))
    padded = [torch.cat([mine, extra]) for mine, extra in zip(tensors, masked, strict=True)]
    torch.testing.assert_close(loss_of(*padded, loss=name), loss_of(*tensors, loss=name))


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "dr_grpo"])
def test_without_a_live_row_the_loss_is_zero_and_gradients_finite(name: Any) -> None:
    logprobs_BT, old_BT, advantages_BT, mask_BT = ragged()
    logprobs_BT.requires_grad_()
    loss, metrics = policy_loss(
        logprobs_BT, old_BT, advantages_BT, torch.zeros_like(mask_BT), loss=name, **CLIPS
    )
    loss.backward()
    assert loss == 0
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad.abs().sum() == 0
    assert all(value == 0 for value in metrics.values())


def test_what_stands_outside_the_mask_does_not_matter() -> None:
    logprobs_BT, old_BT, advantages_BT, mask_BT = ragged()
    outside = ~mask_BT
    wild = [logprobs_BT.masked_fill(outside, 5e4), old_BT.masked_fill(outside, -5e4), advantages_BT, mask_BT]
    torch.testing.assert_close(
        policy_loss(*wild, **CLIPS)[0], policy_loss(logprobs_BT, old_BT, advantages_BT, mask_BT, **CLIPS)[0]
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "low", "high"),
    [(1.5, 1.0, -1.28, 0, 1), (0.5, 1.0, -0.5, 0, 0), (1.5, -1.0, 1.5, 0, 0), (0.5, -1.0, 0.8, 1, 0)],
)
def test_clipping_one_token(ratio: float, advantage: float, expected: float, low: int, high: int) -> None:
    one = torch.ones(1, 1)
    loss, metrics = policy_loss(
        torch.log(one * ratio), torch.zeros(1, 1), advantage * one, one.bool(), **CLIPS
    )
    assert float(loss) == pytest.approx(expected)
    assert (metrics["clip_ratio/low"], metrics["clip_ratio/high"]) == (low, high)
    assert metrics["clip_ratio/region"] == low + high


def test_dr_grpo_asks_for_its_normalizer() -> None:
    with pytest.raises(ValueError, match="dr_grpo"):
        policy_loss(*ragged(), loss="dr_grpo", **CLIPS)


def test_importance_weights_are_capped_and_counted() -> None:
    logprobs_BT = torch.log(torch.tensor([[0.8, 0.2, 0.5, 0.9]]))
    engine_BT = torch.log(torch.tensor([[0.2, 0.4, float("nan"), 0.1]]))
    mask_BT = torch.tensor([[True, True, True, False]])
    weights_BT, metrics = importance_weights(logprobs_BT, engine_BT, mask_BT, cap=2.0)
    torch.testing.assert_close(weights_BT, torch.tensor([[2.0, 0.5, 1.0, 1.0]]))
    assert float(metrics["mismatch/touched_fraction"]) == pytest.approx(1 / 3)
    assert float(metrics["mismatch/weight"]) == pytest.approx(3.5 / 3)


def test_mismatch_kl_estimates_the_kl() -> None:
    torch.manual_seed(0)
    engine_V, trainer_V = torch.randn(8).log_softmax(0), torch.randn(8).log_softmax(0)
    sampled_T = torch.multinomial(engine_V.exp(), 200_000, replacement=True)
    estimate = mismatch_kl(trainer_V[sampled_T][None], engine_V[sampled_T][None], torch.ones(1, 200_000))
    exact = (engine_V.exp() * (engine_V - trainer_V)).sum()
    assert float(estimate) == pytest.approx(float(exact), rel=0.05)
    assert mismatch_kl(engine_V[None], engine_V[None], torch.ones(1, 8)) == 0


def test_supervised_loss_is_the_mean_over_the_masks_tokens() -> None:
    logprobs_BT = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -9.0, -9.0]])
    mask_BT = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool)
    assert supervised_loss(logprobs_BT, mask_BT, normalizer=3.0) == 2
