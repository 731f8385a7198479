"""Sharing what rows have in common is the same function as running each row by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GraniteConfig, MistralConfig, PreTrainedModel, Qwen3Config

from envrl.errors import ConfigError
from envrl.grpo.batches import Batch, micro_batches, token_logprobs
from envrl.grpo.loss import VARIANTS
from envrl.grpo.prefixes import allowed, prefixes_of, sharing
from envrl.grpo.trainer import Trainer
from envrl.model.lora import adapt
from envrl.rollout.transcript import TokenRow
from envrl.spec import GrpoSpec, LoraSpec

Ids = list[int]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


@st.composite
def groups(draw: st.DrawFn) -> list[TokenRow]:
    """Ragged groups, each with a prompt of its own; three ids make members go on alike, or be the same.

    Advantages have one sign: equal members could cancel each other, and leave rounding to compare.
    """
    rows = []
    sign = draw(st.sampled_from([-1, 1]))
    for _ in range(draw(st.integers(1, 3))):
        prompt = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
        for _ in range(draw(st.integers(1, 4))):
            said = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
            mask = (
                [0] * len(prompt)
                + [1]
                + draw(st.lists(st.integers(0, 1), min_size=len(said) - 1, max_size=len(said) - 1))
            )
            advantage = sign * draw(st.sampled_from([0.5, 1.5, 2.0]))
            spread = [advantage * m for m in mask]
            rows.append(TokenRow(prompt + said, mask, [-1.0 * m for m in mask], spread))
    return rows


ALIKE = TokenRow([5, 1, 2], [0, 1, 1], [0.0, -1.0, -1.0], [0.0, 1.0, 1.0])
APART = TokenRow([6, 1, 2], [0, 1, 1], [0.0, -1.0, -1.0], [0.0, 1.0, 1.0])


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9))
def test_every_prefix_once_and_every_row_found_again(rows: list[Ids]) -> None:
    rows = sorted(rows)
    prefixes = prefixes_of(rows)
    assert len(prefixes.ids_P) == len({tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)})
    for row, index_T in zip(rows, prefixes.index_BT, strict=True):
        index_T = index_T[: len(row)]
        assert prefixes.ids_P[index_T].tolist() == row
        assert prefixes.positions_P[index_T].tolist() == list(range(len(row)))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9))
def test_attention_gives_every_prefix_its_own_row(rows: list[Ids]) -> None:
    """What a causal kernel computes at `source_P` is a function of that prefix and nothing else."""
    prefixes = prefixes_of(sorted(rows))
    queries = [
        (row, t)
        for bucket in prefixes.buckets
        for row in bucket.index_bT
        for t in range(bucket.start, len(row))
    ]
    for p, source in enumerate(prefixes.source_P.tolist()):
        row, t = queries[source]
        assert row[t] == p
        assert prefixes.positions_P[row[: t + 1]].tolist() == list(range(t + 1))


@given(groups(), st.integers(1, 60))
def test_every_row_once_and_no_more_distinct_tokens_than_allowed(rows: list[TokenRow], most: int) -> None:
    cut = micro_batches(rows, max_tokens=most, pad_id=0, share=True)
    kept = [
        ids_T[seen_T].tolist() for b in cut for ids_T, seen_T in zip(b.ids_BT, b.attention_BT, strict=True)
    ]
    assert sorted(kept) == sorted(row.ids_T for row in rows)
    assert all(b.prefixes is not None for b in cut)
    assert all(len(b.prefixes.ids_P) <= most or len(b.ids_BT) == 1 for b in cut if b.prefixes)


def learned(model: Any, batches: list[Batch]) -> tuple[dict[tuple[Any, ...], list[float]], torch.Tensor]:
    """Log-probs and entropies by row, and the gradient of a loss that weighs every token differently."""
    model.zero_grad()
    values = {}
    with sharing(model):
        for batch in batches:
            logprobs_BT, entropy_BT = token_logprobs(model, batch, temperature=0.8, entropy_gradient=True)
            weights_BT = batch.advantages_BT * (0.5 + 0.1 * torch.arange(batch.ids_BT.shape[1]))
            (logprobs_BT.exp() * weights_BT + entropy_BT * weights_BT).sum().backward()
            for ids_T, mask_T, *scores in zip(
                batch.ids_BT, batch.mask_BT, logprobs_BT, entropy_BT, batch.attention_BT, strict=True
            ):
                kept_T = scores.pop()
                key = (tuple(ids_T[kept_T].tolist()), tuple(mask_T[kept_T].tolist()))
                values[key] = torch.cat([score[kept_T] for score in scores]).tolist()
    return values, torch.cat([p.grad.flatten() for p in model.parameters()])


def gap(first: torch.Tensor, second: torch.Tensor) -> float:
    """Largest difference between two gradients, as a share of the largest entry."""
    return float((first - second).abs().max() / second.abs().max().clamp_min(1e-3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(rows=groups(), most=st.integers(8, 80))
@example(rows=[ALIKE, ALIKE], most=80)
@example(rows=[ALIKE, APART], most=80)
def test_values_and_gradients_are_those_of_the_plain_path(
    model: Any, rows: list[TokenRow], most: int
) -> None:
    plain, gradient = learned(model, micro_batches(rows, max_tokens=80, pad_id=0))
    shared, own = learned(model, micro_batches(rows, max_tokens=most, pad_id=0, share=True))
    assert shared.keys() == plain.keys()
    for key, values in plain.items():
        assert shared[key] == pytest.approx(values, abs=1e-5)
    assert gap(own, gradient) < 1e-5


def a_group(random_row: Callable[..., TokenRow]) -> list[TokenRow]:
    """Four rows with one prompt, of which two share a first turn, and one that has nothing in common."""
    rng = Random(3)
    prompt, turn = [rng.randrange(64) for _ in range(12)], [7, 8, 9]
    rows = [random_row(rng) for _ in range(5)]
    starts: list[tuple[Ids, Ids]] = [(prompt, []), (prompt, turn), (prompt, turn), (prompt, []), ([], [])]
    return [
        TokenRow(
            [*common, *first, *row.ids_T],
            [*[0] * len(common), *[1] * len(first), *row.mask_T],
            [*[0.0] * len(common), *[-1.0] * len(first), *row.logprobs_T],
            [*[0.0] * len(common), *[max(row.advantages_T, key=abs)] * len(first), *row.advantages_T],
        )
        for (common, first), row in zip(starts, rows, strict=True)
    ]


def built(config: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.eval()


def test_a_head_that_scales_its_logits(random_row: Callable[..., TokenRow]) -> None:
    model, rows = built(GraniteConfig(**SIZES, logits_scaling=3.0)), a_group(random_row)
    (plain,), (shared,) = (micro_batches(rows, max_tokens=999, pad_id=0, share=s) for s in (False, True))
    expected, gradient = learned(model, [plain])
    values, own = learned(model, [shared])
    assert {key: pytest.approx(value, abs=1e-5) for key, value in expected.items()} == values
    assert gap(own, gradient) < 1e-5


def trainer_of(
    model: Any, spec: GrpoSpec, *, accelerator: Accelerator | None = None, **changes: Any
) -> Trainer:
    changed = spec.model_copy(update=changes)
    return Trainer(
        changed,
        copy.deepcopy(model),
        accelerator=accelerator or Accelerator(cpu=True),
        pad_id=0,
        max_tokens=32,
        reference=copy.deepcopy(model) if changed.kl_coef else None,
    )


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("saving", [False, True], ids=["", "gradient_checkpointing"])
@pytest.mark.parametrize("loss", VARIANTS)
def test_a_step_with_every_term_of_the_loss(
    model: Any, spec: GrpoSpec, random_row: Callable[..., TokenRow], loss: str, saving: bool
) -> None:
    terms = {"loss": loss, "kl_coef": 0.1, "entropy_coef": 0.01, "passes": 2, "micro_batch_tokens": 100}
    plain, shared = (trainer_of(model, spec, share_prompts=share, **terms) for share in (False, True))
    if saving:
        shared.model.activation_checkpointing_enable()
    rows = a_group(random_row)
    assert plain.update(rows) == pytest.approx(shared.update(rows), rel=1e-4, abs=1e-6)
    # Adam's first step is learning_rate times nearly the gradient's sign: a wrong one would be off by 2e-2.
    torch.testing.assert_close(weights(plain), weights(shared), atol=5e-4, rtol=0)
    assert shared.model.config._attn_implementation == "sdpa"


def test_a_step_of_adapters(model: Any, spec: GrpoSpec, random_row: Callable[..., TokenRow]) -> None:
    adapt(model, LoraSpec(rank=4), base="", seed=1)
    plain, shared = (trainer_of(model, spec, share_prompts=share) for share in (False, True))
    rows = a_group(random_row)
    assert plain.update(rows) == pytest.approx(shared.update(rows), rel=1e-4, abs=1e-6)
    assert plain.update(rows) == pytest.approx(shared.update(rows), rel=1e-3, abs=1e-4)  # by now they do much


def test_outside_of_sharing_prefixes_are_refused(model: Any) -> None:
    (batch,) = micro_batches([ALIKE, ALIKE], max_tokens=99, pad_id=0, share=True)
    with pytest.raises(AssertionError, match="inside sharing"):
        token_logprobs(model, batch)


@pytest.fixture
def other_precision() -> Iterator[None]:
    """accelerate keeps one precision per process."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.mark.usefixtures("other_precision")
@pytest.mark.parametrize("share", [False, True])
def test_a_step_in_bfloat16(
    model: Any, spec: GrpoSpec, random_row: Callable[..., TokenRow], share: bool
) -> None:
    """The arithmetic is short, the weights and their gradient are not."""
    rows = a_group(random_row)
    exact = trainer_of(model, spec).update(rows)
    AcceleratorState._reset_state()
    short = Accelerator(cpu=True, mixed_precision="bf16")
    trainer = trainer_of(model, spec, accelerator=short, share_prompts=share)
    found = trainer.update(rows)
    for name in ("entropy", "grad_norm"):
        assert found[name] == pytest.approx(exact[name], rel=0.05)
        assert found[name] != pytest.approx(exact[name], rel=1e-5)
    assert weights(trainer).dtype == torch.float32
    assert not torch.equal(weights(trainer), weights(trainer_of(model, spec)))


def test_eager_attention_gives_the_same_step(
    model: Any, spec: GrpoSpec, random_row: Callable[..., TokenRow]
) -> None:
    sdpa = trainer_of(model, spec)
    model.set_attn_implementation("eager")
    eager = trainer_of(model, spec)
    rows = a_group(random_row)
    assert sdpa.update(rows) == pytest.approx(eager.update(rows), rel=1e-4, abs=1e-6)


def test_models_whose_attention_is_another_run_plainly(model: Any) -> None:
    assert allowed("auto", model) == "auto"
    assert allowed(False, model) is False
    slides = built(MistralConfig(**SIZES, sliding_window=4))
    some = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "head_dim": 16}
    some_slide = built(Qwen3Config(**SIZES, **some))
    model.set_attn_implementation("eager")
    for other in (slides, some_slide, model):
        assert allowed("auto", other) is False
        with pytest.raises(
            ConfigError, match=r"share_prompts=true: not with .* mend: grpo\.share_prompts=auto"
        ):
            allowed(True, other)


def test_auto_shares_where_it_saves_enough() -> None:
    def is_shared(rows: list[TokenRow]) -> bool:
        (batch,) = micro_batches(rows, max_tokens=999, pad_id=0, share="auto")
        return batch.prefixes is not None

    assert is_shared([ALIKE] * 4)
    assert not is_shared([ALIKE, APART])


def test_a_model_is_left_as_it_was_found(model: Any) -> None:
    """Also where the pass failed."""
    inside = None
    with suppress(ZeroDivisionError), sharing(model):
        inside = model.config._attn_implementation
        _ = 1 / 0
    assert inside != model.config._attn_implementation == "sdpa"
