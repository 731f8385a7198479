"""The oracle: TRL's own `GRPOTrainer._compute_loss` on the same ragged batch, value and gradient."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from envrl.grpo.batches import Batch, micro_batches, token_logprobs
from envrl.grpo.loss import importance_weights, normalizer_of, policy_loss
from envrl.rollout.transcript import TokenRow

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")

MAX_TOKENS = 32
TEMPERATURE = 0.7
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
"""About half of the tokens in `batch` have a ratio beyond these."""


@pytest.fixture
def theirs(model: Any, tokenizer: Any, tmp_path: Path) -> Any:
    args = trl.GRPOConfig(
        output_dir=str(tmp_path),
        report_to="none",
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=MAX_TOKENS,
        temperature=TEMPERATURE,
        epsilon=CLIPS["clip_low"],
        epsilon_high=CLIPS["clip_high"],
    )
    trainer = trl.GRPOTrainer(
        model=copy.deepcopy(model),
        args=args,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["w3"] * 4}),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


@pytest.fixture
def batch(random_row: Any) -> SimpleNamespace:
    """Ours, theirs, and log-probs that differ from the model's by up to a half at each token."""
    rng = random.Random(3)
    rows = [random_row(rng) for _ in range(7)] + [random_row(rng, advantage=0.0)]
    rows.sort(key=lambda row: -len(row.ids_T))
    (ours,) = micro_batches(rows, max_tokens=10_000, pad_id=0)
    noise_BT = torch.rand(ours.ids_BT.shape, generator=torch.Generator().manual_seed(1)) - 0.5
    return SimpleNamespace(ours=ours, theirs=_their_inputs(rows), rows=rows, noise_BT=noise_BT)


def _their_inputs(rows: list[TokenRow]) -> dict[str, Tensor]:
    """Prompts padded on the left, completions with tool masks padded on the right."""
    prompts = [row.mask_T.index(1) for row in rows]
    left, right = max(prompts), max(len(row.ids_T) - p for row, p in zip(rows, prompts, strict=True))
    inputs: dict[str, list[list[int]]] = {
        name: [] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")
    }
    for row, p in zip(rows, prompts, strict=True):
        before, after = left - p, right - (len(row.ids_T) - p)
        inputs["prompt_ids"].append([0] * before + row.ids_T[:p])
        inputs["prompt_mask"].append([0] * before + [1] * p)
        inputs["completion_ids"].append(row.ids_T[p:] + [0] * after)
        inputs["completion_mask"].append([1] * (len(row.ids_T) - p) + [0] * after)
        inputs["tool_mask"].append(row.mask_T[p:] + [0] * after)
    tensors = {name: torch.tensor(values) for name, values in inputs.items()}
    tensors["advantages"] = torch.tensor([max(row.advantages_T) + min(row.advantages_T) for row in rows])
    tensors["num_items_in_batch"] = tensors["tool_mask"].sum()
    return tensors


def _as_completion(value_BT: Tensor, rows: list[TokenRow], width: int) -> Tensor:
    """Our [B, T] in TRL's layout, which leaves the prompt out."""
    shifted = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        prompt, length = row.mask_T.index(1), len(row.ids_T)
        shifted[i, : length - prompt] = value_BT[i, prompt:length]
    return shifted


def _gradients(model: Any) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters()}


def _assert_equal_gradients(ours: Any, theirs: Any) -> None:
    expected = _gradients(theirs)
    assert sum(float(g.abs().sum()) for g in expected.values()) > 0.1
    for name, gradient in _gradients(ours).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-5, msg=name)


def _normalizer(batch: Batch, normalisation: Any) -> float:
    tokens, rows = float(batch.mask_BT.sum()), float(len(batch.ids_BT))
    return normalizer_of(normalisation, tokens=tokens, rows=rows, max_tokens=MAX_TOKENS)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("normalisation", ["dapo", "grpo", "bnpo", "dr_grpo"])
@pytest.mark.parametrize("corrected", [False, True], ids=["clipped", "weighted_with_kl"])
def test_loss_and_gradient_equal_trl(
    theirs: Any, model: Any, batch: Any, normalisation: Any, corrected: bool
) -> None:
    ours, width = batch.ours, batch.theirs["completion_ids"].shape[1]
    logprobs_BT, _ = token_logprobs(model, ours, temperature=TEMPERATURE)
    old_BT = logprobs_BT.detach() + batch.noise_BT
    inputs = batch.theirs | {"old_per_token_logps": _as_completion(old_BT, batch.rows, width)}
    theirs.loss_type = normalisation
    extra: dict[str, Any] = {}
    if corrected:
        weights_BT, metrics = importance_weights(old_BT, ours.logprobs_BT, ours.mask_BT, cap=1.5)
        assert 0 < metrics["mismatch/capped_fraction"] < 1
        reference_BT = logprobs_BT.detach() - 2 * batch.noise_BT
        extra = {"importance_weights_BT": weights_BT, "reference_logprobs_BT": reference_BT, "kl_coef": 0.05}
        theirs.use_vllm, theirs.beta = True, 0.05
        ratio_BT = torch.exp(old_BT - ours.logprobs_BT).clamp(max=1.5)
        inputs["importance_sampling_ratio"] = _as_completion(ratio_BT, batch.rows, width)
        inputs["ref_per_token_logps"] = _as_completion(reference_BT, batch.rows, width)
    loss, metrics = policy_loss(
        logprobs_BT,
        old_BT,
        ours.advantages_BT,
        ours.mask_BT,
        normalisation=normalisation,
        normalizer=_normalizer(ours, normalisation),
        **CLIPS,
        **extra,
    )
    loss.backward()
    expected = theirs._compute_loss(theirs.model.train(), inputs)
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    _assert_equal_gradients(model, theirs.model)
    logged = theirs._metrics["train"]
    for kind in ("low", "high", "region"):
        assert float(metrics[f"clip_ratio/{kind}"]) == pytest.approx(logged[f"clip_ratio/{kind}_mean"][-1])
        assert metrics[f"clip_ratio/{kind}"] > 0
    if corrected:
        assert float(metrics["kl_reference"]) == pytest.approx(logged["kl"][-1], rel=1e-4)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_accumulated_micro_batches_equal_trls_whole_batch(theirs: Any, model: Any, batch: Any) -> None:
    theirs.loss_type = "dapo"
    theirs._compute_loss(theirs.model.train(), batch.theirs).backward()
    for micro in micro_batches(batch.rows, max_tokens=48, pad_id=0):
        logprobs_BT, _ = token_logprobs(model, micro, temperature=TEMPERATURE)
        loss, _ = policy_loss(
            logprobs_BT,
            logprobs_BT.detach(),
            micro.advantages_BT,
            micro.mask_BT,
            normalizer=_normalizer(batch.ours, "dapo"),
            **CLIPS,
        )
        loss.backward()
    _assert_equal_gradients(model, theirs.model)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_entropy_equals_trl(theirs: Any, model: Any, batch: Any) -> None:
    _, entropy_BT = token_logprobs(model, batch.ours, temperature=TEMPERATURE)
    theirs._compute_loss(theirs.model.train(), batch.theirs)
    mean = float(entropy_BT.sum() / batch.ours.mask_BT.sum())
    assert mean == pytest.approx(theirs._metrics["train"]["entropy"][-1], rel=1e-5)
