"""One optimizer step per batch of episodes.

Every rank works through its own rows on the bare model and the gradients are summed over ranks once,
at the end. So ranks may hold different numbers of rows, or none, and nobody waits inside a backward pass.
The old log-probs are the trainer's own, so the ratio starts at exactly 1; what the engine computed
differently enters through the capped importance weight.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from envrl.errors import StageError
from envrl.grpo.batches import Batch, micro_batches, token_logprobs
from envrl.grpo.loss import importance_weights, masked_mean, mismatch_kl, normalizer_of, policy_loss
from envrl.grpo.optimizer import adamw, lr_factor, set_learning_rate

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from envrl.rollout.transcript import TokenRow
    from envrl.spec import GrpoSpec


@dataclass
class _Sums:
    """Token-weighted sums of the metrics over the micro-batches of one rank."""

    loss: float = 0.0
    tokens: float = 0.0
    weighted: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, loss: Tensor, tokens: float, metrics: dict[str, Tensor]) -> None:
        self.loss += float(loss.detach())
        self.tokens += tokens
        for name, value in metrics.items():
            self.weighted[name] += float(value) * tokens


class Trainer:
    """Owns the optimizer and the schedule; the model is shared with whoever samples from it."""

    def __init__(
        self,
        spec: GrpoSpec,
        model: PreTrainedModel,
        *,
        accelerator: Accelerator,
        pad_id: int,
        max_tokens: int,
        reference: PreTrainedModel | None = None,
    ) -> None:
        """`max_tokens` is the longest an episode may be, by which dr_grpo divides.

        With kl_coef above 0, `reference` is the policy to stay near; None takes a frozen copy of the
        model as it is now.
        """
        self.spec = spec
        self.model = model.to(accelerator.device)
        self.accelerator = accelerator
        self.pad_id = pad_id
        self.max_tokens = max_tokens
        self.reference = None
        if spec.kl_coef > 0:
            self.reference = (reference or copy.deepcopy(model)).to(accelerator.device)
            self.reference.requires_grad_(False).eval()
        self._adamw = adamw(model, learning_rate=spec.learning_rate, weight_decay=spec.weight_decay)
        self._optimizer = accelerator.prepare_optimizer(self._adamw)
        self.step = 0
        """Updates done so far, those without anything to learn included."""

    def update(self, rows: Sequence[TokenRow]) -> dict[str, float]:
        """One optimizer step on this rank's rows; every rank calls it. Returns metrics over all ranks.

        Rows whose advantages are all 0 count in the loss's denominator but are not run, unless there is a
        reference to stay near; `entropy`, `kl_engine` (k3, see `mismatch_kl`), `mismatch/*` and
        `clip_ratio/*` are means over the tokens that were run, and missing where there were none.
        `skipped_rows` counts these and the masked truncated ones, `rows` and `tokens` (sampled) all that were
        given. Without a row to learn from the weights stay and only the schedule moves on. Raises
        StageError for a gradient that is not finite.
        """
        spec = self.spec
        counted = [row for row in rows if any(row.mask_T) and not (spec.mask_truncated and row.truncated)]
        run = [row for row in counted if self.reference is not None or any(row.advantages_T)]
        learning_rate = spec.learning_rate * lr_factor(
            self.step, schedule=spec.lr_schedule, warmup_steps=spec.warmup_steps, steps=spec.steps
        )
        size = {
            "rows": len(rows),
            "tokens": _sampled(rows),
            "skipped_rows": len(rows) - len(run),
            "counted_rows": len(counted),
            "counted_tokens": _sampled(counted),
            "run_rows": len(run),
        }
        whole = dict(zip(size, self._summed(list(map(float, size.values()))), strict=True))
        metrics = {name: whole[name] for name in ("rows", "tokens", "skipped_rows")}
        metrics |= {"learning_rate": learning_rate, "loss": 0.0, "grad_norm": 0.0}
        if whole["run_rows"]:
            sums = self._accumulate(run, self._normalizer(whole, local_tokens=size["counted_tokens"]))
            metrics |= self._means(sums)
            metrics["grad_norm"] = self._apply(learning_rate)
            if not math.isfinite(metrics["grad_norm"]):  # fp16: its scaler left this step out
                del metrics["grad_norm"]
        self.step += 1
        return metrics

    def _normalizer(self, whole: dict[str, float], *, local_tokens: float) -> float:
        ranks = self.accelerator.num_processes
        tokens = local_tokens * ranks if self.spec.loss == "bnpo" else whole["counted_tokens"]
        return normalizer_of(
            self.spec.loss, tokens=tokens, rows=whole["counted_rows"], max_tokens=self.max_tokens
        )

    def _accumulate(self, rows: Sequence[TokenRow], normalizer: float) -> _Sums:
        """Forward and backward of every micro-batch; gradients and metrics add up."""
        was_training = self.model.training
        self.model.train()
        sums = _Sums()
        for batch in micro_batches(rows, max_tokens=self.spec.micro_batch_tokens, pad_id=self.pad_id):
            batch = batch.to(self.accelerator.device)
            loss, metrics = self._loss(batch, normalizer)
            self.accelerator.backward(loss)
            sums.add(loss, float(batch.mask_BT.sum()), metrics)
        self.model.train(was_training)
        return sums

    def _loss(self, batch: Batch, normalizer: float) -> tuple[Tensor, dict[str, Tensor]]:
        spec, temperature = self.spec, self.spec.temperature
        with self.accelerator.autocast():
            logprobs_BT, entropy_BT = token_logprobs(self.model, batch, temperature=temperature)
            reference_BT = None
            if self.reference is not None:
                with torch.no_grad():
                    reference_BT, _ = token_logprobs(self.reference, batch, temperature=temperature)
        old_BT = logprobs_BT.detach()
        metrics = {
            "entropy": masked_mean(entropy_BT, batch.mask_BT),
            "kl_engine": mismatch_kl(old_BT, batch.logprobs_BT, batch.mask_BT),
        }
        weights_BT = None
        if spec.mismatch_cap is not None:
            weights_BT, mismatch = importance_weights(
                old_BT, batch.logprobs_BT, batch.mask_BT, cap=spec.mismatch_cap
            )
            metrics |= mismatch
        loss, clipping = policy_loss(
            logprobs_BT,
            old_BT,
            batch.advantages_BT,
            batch.mask_BT,
            clip_low=spec.clip_low,
            clip_high=spec.clip_high,
            normalisation=spec.loss,
            normalizer=normalizer,
            importance_weights_BT=weights_BT,
            reference_logprobs_BT=reference_BT,
            kl_coef=spec.kl_coef,
        )
        return loss, metrics | clipping

    def _means(self, sums: _Sums) -> dict[str, float]:
        """Over all ranks; a rank that ran nothing joins with zeros."""
        names = ["entropy", "kl_engine", "clip_ratio/low", "clip_ratio/high", "clip_ratio/region"]
        if self.spec.mismatch_cap is not None:
            names += ["mismatch/capped_fraction", "mismatch/weight"]
        if self.reference is not None:
            names.append("kl_reference")
        weighted = [sums.weighted[name] for name in names]
        loss, tokens, *values = self._summed([sums.loss, sums.tokens, *weighted])
        return {"loss": loss} | {name: value / tokens for name, value in zip(names, values, strict=True)}

    def _apply(self, learning_rate: float) -> float:
        """Sums the gradients over ranks, clips them, and steps. Returns their norm before clipping."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if self.accelerator.num_processes > 1:
            for parameter in parameters:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.accelerator.reduce(gradient, "sum")
        norm = float(self.accelerator.clip_grad_norm_(parameters, self.spec.max_grad_norm))
        if not math.isfinite(norm) and self.accelerator.scaler is None:
            raise StageError(f"step {self.step}: gradient norm is {norm}; try a smaller grpo.learning_rate")
        set_learning_rate(self._adamw, learning_rate)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return norm

    def _summed(self, values: list[float]) -> list[float]:
        """Element by element over all ranks."""
        if self.accelerator.num_processes == 1:
            return values
        vector = torch.tensor(values, device=self.accelerator.device)
        return [float(value) for value in self.accelerator.reduce(vector, "sum")]

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs besides the weights: optimizer, step, torch's random state."""
        scaler = self.accelerator.scaler
        return {
            "step": self.step,
            "optimizer": self._adamw.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes up where `state` was taken; the model's weights are the caller's to load."""
        self.step = state["step"]
        self._adamw.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda_rng"])
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])


def _sampled(rows: Sequence[TokenRow]) -> int:
    return sum(sum(row.mask_T) for row in rows)
