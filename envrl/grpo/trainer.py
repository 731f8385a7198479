"""One or several optimizer steps per batch of episodes.

Every rank works through its own rows on the bare model and the gradients are summed over ranks once,
at the end of an update. So ranks may hold different numbers of rows, or none, and nobody waits inside a
backward pass.
The old log-probs are the trainer's own from before the first update, so the ratio starts at exactly 1; what
the engine computed differently enters through the importance weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from accelerate.utils import gather_object
from torch import Tensor

from envrl.errors import ConfigError, StageError
from envrl.grpo.batches import Batch, micro_batches, token_logprobs
from envrl.grpo.loss import normalizer_of
from envrl.grpo.minibatch import MiniBatch, Piece, Sums
from envrl.grpo.objective import objective
from envrl.grpo.optimizer import adamw, lr_factor, set_learning_rate
from envrl.grpo.prefixes import allowed, sharing
from envrl.model.lora import at_start

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from envrl.rollout.transcript import TokenRow
    from envrl.spec import GrpoSpec

T = TypeVar("T")


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

        `reference` is the policy to stay near, needed with kl_coef above 0 and only then; the model itself,
        after `keep_start`, is its own. Raises ValueError where it is missing or of no use.
        """
        if (reference is None) != (spec.kl_coef == 0):
            given = "none" if reference is None else "one"
            raise ValueError(
                f"a reference is for kl_coef above 0 (got {given} with kl_coef={spec.kl_coef:g})"
            )
        self.spec = spec
        self.model = model.to(accelerator.device)
        self.accelerator = accelerator
        self.pad_id = pad_id
        self.max_tokens = max_tokens
        self.reference = reference
        if reference is not None and reference is not model:
            reference.to(accelerator.device).requires_grad_(False).eval()
        self._share = allowed(spec.share_prompts, self.model)
        self._adamw = adamw(
            model, learning_rate=spec.learning_rate, weight_decay=spec.weight_decay, kind=spec.optimizer
        )
        self._optimizer = accelerator.prepare_optimizer(self._adamw)
        self.step = 0
        """Batches done so far, those without anything to learn included."""

    def update(self, rows: Sequence[TokenRow]) -> dict[str, float]:
        """Trains on this rank's rows of a step; every rank calls it. Returns metrics over all ranks.

        Rows whose advantages are all 0 count in the loss's denominator but are not run, unless there is a
        reference to stay near or entropy to raise. `loss` and `grad_norm` are means over the `updates` that
        were made. `entropy`, `kl_engine` (see `mismatch_kl`), `mismatch/*`, `off_policy/*` and `clip_ratio/*`
        are means over the tokens that were run, and missing where there were none;
        `mismatch/touched_tokens` are those of one pass. `skipped_rows` counts rows that were not run, `rows`
        and `tokens` (sampled) all that were given. Without a row to learn from the weights stay and only the
        schedule moves on. Raises StageError for a gradient that is not finite.
        """
        spec = self.spec
        learning_rate = spec.learning_rate * lr_factor(
            self.step, schedule=spec.lr_schedule, warmup_steps=spec.warmup_steps, steps=spec.steps
        )
        given, tokens = self._summed([float(len(rows)), float(_sampled(rows))])
        parts = self._split(rows)
        run = sum(part.run_rows for part in parts)
        metrics = {"rows": given, "tokens": tokens, "skipped_rows": given - run}
        metrics["learning_rate"] = learning_rate
        if parts := [part for part in parts if part.run_rows]:
            with sharing(self.model, self.reference) if self._share else nullcontext():
                metrics |= self._descend(parts, learning_rate)
        else:
            metrics |= {"updates": 0.0, "loss": 0.0, "grad_norm": 0.0}
        self.step += 1
        return metrics

    def _split(self, rows: Sequence[TokenRow]) -> list[MiniBatch]:
        """The rows that count, dealt out in turn, so that a group's are spread over the mini-batches.

        Every rank makes as many, also where some of its own are empty.
        """
        counted = [row for row in rows if self._counts(row)]
        count = self.spec.mini_batches
        return [self._mini_batch(counted[i::count]) for i in range(count)]

    def _counts(self, row: TokenRow) -> bool:
        spec = self.spec
        left_out = (spec.mask_truncated and row.truncated) or (spec.flat_groups == "drop" and row.flat)
        return any(row.mask_T) and not left_out

    def _mini_batch(self, rows: Sequence[TokenRow]) -> MiniBatch:
        spec = self.spec
        needs_all = self.reference is not None or spec.entropy_coef > 0
        run = [row for row in rows if needs_all or any(row.advantages_T)]
        rank_tokens = float(_sampled(rows))
        counted_rows, run_rows, tokens = self._summed([float(len(rows)), float(len(run)), rank_tokens])
        batches = micro_batches(
            run, max_tokens=spec.micro_batch_tokens, pad_id=self.pad_id, share=self._share
        )
        return MiniBatch(
            pieces=[Piece(batch) for batch in batches],
            run_rows=run_rows,
            tokens=tokens,
            normalizer=normalizer_of(
                spec.loss,
                tokens=tokens,
                rank_tokens=rank_tokens,
                ranks=self.accelerator.num_processes,
                rows=counted_rows,
                max_tokens=self.max_tokens,
            ),
        )

    def _descend(self, parts: Sequence[MiniBatch], learning_rate: float) -> dict[str, float]:
        """An optimizer step per mini-batch and pass. Returns the metrics of the whole."""
        for part in parts[1:]:  # the first one's are those of its own forward pass
            for piece in part.pieces:
                piece.old_BT = self._scored(self.model, piece.batch.to(self.accelerator.device))
        sums, norms = Sums(), []
        for part in [*parts] * self.spec.passes:
            self._accumulate(part, sums)
            norms.append(self._apply(learning_rate))
        metrics = {"updates": float(len(norms))} | self._means(sums, updates=len(norms))
        if finite := [norm for norm in norms if math.isfinite(norm)]:  # fp16: its scaler left out the others
            metrics["grad_norm"] = fmean(finite)
        return metrics

    def _accumulate(self, part: MiniBatch, sums: Sums) -> None:
        """Forward and backward of every micro-batch; gradients and metrics add up."""
        was_training = self.model.training
        self.model.train()
        for piece in part.pieces:
            batch = piece.batch.to(self.accelerator.device)
            loss, metrics = self._loss(piece, batch, part)
            self.accelerator.backward(loss)
            sums.add(loss, float(batch.mask_BT.sum()), metrics)
        self.model.train(was_training)

    def _loss(self, piece: Piece, batch: Batch, part: MiniBatch) -> tuple[Tensor, dict[str, Tensor]]:
        spec = self.spec
        with self.accelerator.autocast():
            logprobs_BT, entropy_BT = token_logprobs(
                self.model, batch, temperature=spec.temperature, entropy_gradient=spec.entropy_coef > 0
            )
        if piece.old_BT is None:
            piece.old_BT = logprobs_BT.detach()
        if piece.reference_BT is None and self.reference is not None:
            with at_start(self.model) if self.reference is self.model else nullcontext():
                piece.reference_BT = self._scored(self.reference, batch)
        return objective(
            spec,
            batch,
            logprobs_BT=logprobs_BT,
            entropy_BT=entropy_BT,
            old_BT=piece.old_BT,
            reference_BT=piece.reference_BT,
            normalizer=part.normalizer,
            tokens=part.tokens,
        )

    @torch.no_grad()
    def _scored(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        with self.accelerator.autocast():
            return token_logprobs(model, batch, temperature=self.spec.temperature)[0]

    def _means(self, sums: Sums, *, updates: int) -> dict[str, float]:
        """Over all ranks; a rank that ran nothing has nothing to add."""
        whole = sum(self._gathered(sums), start=Sums())
        metrics = {name: value / whole.tokens for name, value in whole.weighted.items()}
        if self.spec.mismatch is not None:
            touched = metrics["mismatch/touched_fraction"] * whole.tokens / self.spec.passes
            metrics["mismatch/touched_tokens"] = float(round(touched))
        return {"loss": whole.loss / updates} | metrics

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

    def _gathered(self, value: T) -> list[T]:
        """Of all ranks, in their order."""
        if self.accelerator.num_processes == 1:
            return [value]
        return gather_object([value])  # type: ignore[no-any-return]

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs besides the weights: optimizer, step, torch's random states.

        Every rank calls it, and each has a random state of its own in it.
        """
        scaler = self.accelerator.scaler
        return {
            "step": self.step,
            "kind": self.spec.optimizer,
            "optimizer": self._adamw.state_dict(),
            "rng": self._gathered(_random_state()),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes up where `state` was taken; the model's weights are the caller's to load.

        A rank beyond those that the state was taken of keeps its own random state. Raises ConfigError for the
        state of another optimizer.
        """
        if state["kind"] != self.spec.optimizer:
            raise ConfigError(
                f"grpo.optimizer: the checkpoint has a state of {state['kind']} (got {self.spec.optimizer}); "
                f"mend: grpo.optimizer={state['kind']}"
            )
        self.step = state["step"]
        self._adamw.load_state_dict(state["optimizer"])
        for random_state in state["rng"][self.accelerator.process_index :][:1]:
            _set_random_state(random_state)
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])


def _random_state() -> dict[str, Tensor]:
    """Of torch's generators on this rank."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _sampled(rows: Sequence[TokenRow]) -> int:
    return sum(sum(row.mask_T) for row in rows)
