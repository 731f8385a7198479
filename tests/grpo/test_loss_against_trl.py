"""The oracle: TRL's own `GRPOTrainer._compute_loss` on the same ragged batch, value and gradient."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from envrl import compose
from envrl.grpo.batches import micro_batches, token_logprobs
from envrl.grpo.loss import VARIANTS, normalizer_of, policy_loss
from envrl.grpo.objective import objective
from envrl.rollout.transcript import TokenRow
from envrl.spec import GrpoSpec

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")

MAX_TOKENS = 32
TEMPERATURE = 0.7


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
def batch(model: Any, random_row: Any) -> SimpleNamespace:
    """Ours, theirs, and a noise of up to a half at each token; the engine's log-probs have another."""
    rng = random.Random(3)
    rows = [random_row(rng) for _ in range(7)] + [random_row(rng, advantage=0.0)]
    rows.sort(key=lambda row: -len(row.ids_T))
    (ours,) = micro_batches(rows, max_tokens=10_000, pad_id=0)
    noise_BT, engine_BT = (_noise(ours.ids_BT.shape, seed) * ours.mask_BT for seed in (1, 2))
    with torch.no_grad():
        engine_BT += token_logprobs(model, ours, temperature=TEMPERATURE)[0]
    for i, row in enumerate(rows[:3]):  # an engine may leave some out
        engine_BT[i, row.mask_T.index(1)] = math.nan
    ours = replace(ours, logprobs_BT=engine_BT)
    return SimpleNamespace(ours=ours, theirs=_their_inputs(rows), rows=rows, noise_BT=noise_BT)


def _noise(shape: torch.Size, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 0.5


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


def _ours(model: Any, spec: GrpoSpec, batch: Any, **given: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Our loss of a whole batch. `given` are old_BT and reference_BT; the old ones may be the model's own."""
    ours, entropic = batch.ours, spec.entropy_coef > 0
    logprobs_BT, entropy_BT = token_logprobs(model, ours, temperature=TEMPERATURE, entropy_gradient=entropic)
    tokens, rows = float(ours.mask_BT.sum()), float(len(ours.ids_BT))
    return objective(
        spec,
        ours,
        logprobs_BT=logprobs_BT,
        entropy_BT=entropy_BT,
        old_BT=given.get("old_BT", logprobs_BT.detach()),
        reference_BT=given.get("reference_BT"),
        normalizer=normalizer_of(
            spec.loss, tokens=tokens, rank_tokens=tokens, ranks=1, rows=rows, max_tokens=MAX_TOKENS
        ),
        tokens=tokens,
    )


def _as_theirs(trainer: Any, spec: GrpoSpec) -> None:
    """Gives TRL's trainer the settings of a spec."""
    trainer.loss_type = "grpo" if spec.loss == "gspo" else spec.loss
    trainer.importance_sampling_level = "sequence" if spec.loss == "gspo" else "token"
    # TRL's bound of cispo is the weight itself.
    trainer.epsilon_low = spec.clip_low
    trainer.epsilon_high = spec.clip_high + (spec.loss == "cispo")
    trainer.args.delta = spec.clip_delta
    trainer.beta = spec.kl_coef
    trainer.entropy_coef, trainer._entropy_bonus_enabled = spec.entropy_coef, spec.entropy_coef > 0
    trainer.off_policy_mask_threshold = spec.off_policy_mask
    trainer.use_vllm = spec.mismatch is not None


def _their_ratio(spec: GrpoSpec, batch: Any, old_BT: Tensor, width: int) -> Tensor:
    """TRL computes the weights while it generates, so its lines for the four modes are repeated here."""
    assert spec.mismatch is not None
    level, beyond, floor, cap = spec.mismatch.model_dump().values()
    diff_BT = torch.nan_to_num((old_BT - batch.ours.logprobs_BT) * batch.ours.mask_BT, nan=0.0)
    ratio = torch.exp(diff_BT if level == "token" else diff_BT.sum(-1, keepdim=True))
    if beyond == "truncate":
        ratio = ratio.clamp(min=floor, max=cap)
    else:
        ratio = ratio.masked_fill((ratio < floor) | (ratio > cap), 0.0)
    return _as_completion(ratio, batch.rows, width) if level == "token" else ratio


PLAIN = ["grpo.mismatch=null"]
ALL = ["grpo.kl_coef=0.05", "grpo.entropy_coef=0.02", "grpo.off_policy_mask=0.01", "grpo.mismatch.cap=1.5"]
BAND = ["grpo.mismatch.cap=1.5", "grpo.mismatch.floor=0.5"]
WIDE = ["grpo.mismatch.cap=3", "grpo.mismatch.floor=0.3"]
CLIPS = ["grpo.clip_low=0.2", "grpo.clip_high=0.28"]
SEQUENCE_CLIPS = ["grpo.clip_low=0.02", "grpo.clip_high=0.03"]
WEIGHT_CLIPS = ["grpo.clip_low=1", "grpo.clip_high=0.28"]
"""A good part of what is in `batch` has a ratio beyond these."""

CASES = {
    f"{loss}-{'all' if extra is ALL else 'plain'}": [f"grpo.loss={loss}", *clips, *extra]
    for loss, clips in (
        *((loss, CLIPS) for loss in ("grpo", "dapo", "dr_grpo", "bnpo")),
        ("gspo", SEQUENCE_CLIPS),
        ("cispo", WEIGHT_CLIPS),
    )
    for extra in (PLAIN, ALL)
}
CASES |= {
    "delta": ["grpo.clip_delta=1.3", *CLIPS, *PLAIN],
    "entropy": ["grpo.entropy_coef=0.5", *CLIPS, *PLAIN],
    "off_policy_mask": ["grpo.off_policy_mask=0.01", *CLIPS, *PLAIN],
    "token_mask": ["grpo.mismatch.beyond=mask", *CLIPS, *BAND],
    "token_truncate": [*CLIPS, *BAND],
    "sequence_mask": ["grpo.mismatch.level=sequence", "grpo.mismatch.beyond=mask", *CLIPS, *WIDE],
    "sequence_truncate": ["grpo.mismatch.level=sequence", *CLIPS, *WIDE],
}


def test_every_loss_has_a_case() -> None:
    assert {case.partition("-")[0] for case in CASES} >= VARIANTS.keys()
    assert VARIANTS.keys() == set(get_args(GrpoSpec.model_fields["loss"].annotation))


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_equal_trl(theirs: Any, model: Any, batch: Any, case: str) -> None:
    spec, width = compose(CASES[case]).grpo, batch.theirs["completion_ids"].shape[1]
    with torch.no_grad():
        logprobs_BT, _ = token_logprobs(model, batch.ours, temperature=TEMPERATURE)
    given = {"old_BT": logprobs_BT + batch.noise_BT}
    inputs = batch.theirs | {"old_per_token_logps": _as_completion(given["old_BT"], batch.rows, width)}
    inputs["sampling_per_token_logps"] = _as_completion(batch.ours.logprobs_BT, batch.rows, width)
    if spec.mismatch is not None:
        inputs["importance_sampling_ratio"] = _their_ratio(spec, batch, given["old_BT"], width)
    if spec.kl_coef:
        given["reference_BT"] = logprobs_BT - 2 * batch.noise_BT
        inputs["ref_per_token_logps"] = _as_completion(given["reference_BT"], batch.rows, width)
    _as_theirs(theirs, spec)
    loss, metrics = _ours(model, spec, batch, **given)
    loss.backward()
    expected = theirs._compute_loss(theirs.model.train(), inputs)
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    _assert_equal_gradients(model, theirs.model)
    _assert_equal_metrics(spec, metrics, theirs._metrics["train"])


def _assert_equal_metrics(spec: GrpoSpec, ours: dict[str, Tensor], logged: dict[str, list[float]]) -> None:
    """Those that TRL has, too; all must have seen something, so that no setting of the case is idle."""
    if spec.loss == "cispo":
        assert float(ours["clip_ratio/high"]) == pytest.approx(logged["cispo_clip_ratio"][-1])
    elif spec.loss != "gspo":  # whose are TRL's means over rows, and ours over tokens
        for kind in ("low", "high", "region"):
            assert float(ours[f"clip_ratio/{kind}"]) == pytest.approx(logged[f"clip_ratio/{kind}_mean"][-1])
    assert float(ours["entropy"]) == pytest.approx(logged["entropy"][-1], rel=1e-5)
    if spec.kl_coef:
        assert float(ours["kl_reference"]) == pytest.approx(logged["kl"][-1], rel=1e-4)
    assert all(value != 0 for name, value in ours.items() if name != "clip_ratio/low")
    if spec.loss != "cispo":
        assert ours["clip_ratio/low"] > 0


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_accumulated_micro_batches_equal_trls_whole_batch(theirs: Any, model: Any, batch: Any) -> None:
    """The micro-batches share one normalizer, that of the whole."""
    theirs.loss_type = "dapo"
    theirs._compute_loss(theirs.model.train(), batch.theirs).backward()
    tokens = float(batch.ours.mask_BT.sum())
    for micro in micro_batches(batch.rows, max_tokens=48, pad_id=0):
        logprobs_BT, _ = token_logprobs(model, micro, temperature=TEMPERATURE)
        old_BT, clips = logprobs_BT.detach(), {"clip_low": 0.2, "clip_high": 0.28}
        loss, _ = policy_loss(
            logprobs_BT, old_BT, micro.advantages_BT, micro.mask_BT, normalizer=tokens, **clips
        )
        loss.backward()
    _assert_equal_gradients(model, theirs.model)
