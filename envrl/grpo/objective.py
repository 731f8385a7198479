"""The whole loss of a micro-batch, as the spec puts it together. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from envrl.grpo.batches import Batch
from envrl.grpo.loss import entropy_bonus, masked_mean, policy_loss
from envrl.grpo.mismatch import importance_weights, mismatch_kl, off_policy_mask

if TYPE_CHECKING:
    from envrl.spec import GrpoSpec


def objective(
    spec: GrpoSpec,
    batch: Batch,
    *,
    logprobs_BT: Tensor,
    entropy_BT: Tensor,
    old_BT: Tensor,
    reference_BT: Tensor | None,
    normalizer: float,
    tokens: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to minimise, and metrics as means over the tokens of the batch's mask.

    `normalizer` (see `normalizer_of`) and `tokens`, which the entropy bonus is divided by, are those of the
    whole update.
    """
    weights_BT, metrics = _weights(spec, batch, logprobs_BT, old_BT)
    loss, seen = policy_loss(
        logprobs_BT,
        old_BT,
        batch.advantages_BT,
        batch.mask_BT,
        clip_low=spec.clip_low,
        clip_high=spec.clip_high,
        clip_delta=spec.clip_delta,
        loss=spec.loss,
        normalizer=normalizer,
        importance_weights_BT=weights_BT,
        reference_logprobs_BT=reference_BT,
        kl_coef=spec.kl_coef,
    )
    if spec.entropy_coef > 0:
        loss = loss - spec.entropy_coef * entropy_bonus(entropy_BT, batch.mask_BT, tokens=tokens)
    return loss, metrics | seen | {"entropy": masked_mean(entropy_BT.detach(), batch.mask_BT)}


def _weights(
    spec: GrpoSpec, batch: Batch, logprobs_BT: Tensor, old_BT: Tensor
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """What the surrogate is multiplied with, because the engine or an older policy sampled."""
    engine_BT, mask_BT = batch.logprobs_BT, batch.mask_BT
    weights_BT, metrics = None, {"kl_engine": mismatch_kl(old_BT, engine_BT, mask_BT)}
    if spec.mismatch is not None:
        weights_BT, seen = importance_weights(old_BT, engine_BT, mask_BT, **spec.mismatch.model_dump())
        metrics |= seen
    if spec.off_policy_mask is not None:
        kept_BT, seen = off_policy_mask(
            logprobs_BT, engine_BT, batch.advantages_BT, mask_BT, threshold=spec.off_policy_mask
        )
        weights_BT = kept_BT if weights_BT is None else weights_BT * kept_BT
        metrics |= seen
    return weights_BT, metrics
