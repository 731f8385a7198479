from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma2Config, Gemma2ForCausalLM

from envrl.grpo import batches
from envrl.grpo.batches import Batch, micro_batches, token_logprobs
from envrl.rollout.transcript import TokenRow

PAD = 0


def row_of(ids: list[int]) -> TokenRow:
    mask = [0] + [1] * (len(ids) - 1)
    return TokenRow(ids, mask, [-0.5 * m for m in mask], [2.0 * m for m in mask])


rows_of_ids = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30).map(row_of), max_size=20)


def unpadded(batch: Batch) -> list[list[int]]:
    pairs = zip(batch.ids_BT, batch.attention_BT, strict=True)
    return [ids_T[kept_T].tolist() for ids_T, kept_T in pairs]


@given(rows_of_ids, st.integers(1, 80))
def test_every_row_once_within_the_budget(rows: list[TokenRow], max_tokens: int) -> None:
    cut = micro_batches(rows, max_tokens=max_tokens, pad_id=PAD)
    assert sorted(ids for batch in cut for ids in unpadded(batch)) == sorted(row.ids_T for row in rows)
    assert all(batch.ids_BT.numel() <= max_tokens or len(batch.ids_BT) == 1 for batch in cut)


@given(rows_of_ids, st.integers(1, 80))
def test_cutting_is_deterministic(rows: list[TokenRow], max_tokens: int) -> None:
    first, second = (micro_batches(rows, max_tokens=max_tokens, pad_id=PAD) for _ in range(2))
    assert [unpadded(batch) for batch in first] == [unpadded(batch) for batch in second]


def test_masks_come_from_lengths_where_the_end_token_is_the_padding() -> None:
    """A sampled end token is attended to and trained, an observation attended to alone (trl#4974)."""
    ids = [5, 6, PAD, 7, 8, 9, PAD]
    mask = [0, 1, 1, 0, 0, 1, 1]
    longer = TokenRow([3] * 9, [0] + [1] * 8, [-1.0] * 9, [1.0] * 9)
    (batch,) = micro_batches([TokenRow(ids, mask, [0.0] * 7, [1.0] * 7), longer], max_tokens=99, pad_id=PAD)
    assert batch.attention_BT[1].tolist() == [True] * 7 + [False] * 2
    assert batch.mask_BT[1].tolist() == [bool(m) for m in mask] + [False] * 2


def plain(model: Any, row: TokenRow, temperature: float) -> tuple[list[float], list[float]]:
    """One row alone, every logit, an explicit attention mask."""
    ids = torch.tensor([row.ids_T])
    with torch.no_grad():
        logits_TV = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0] / temperature
    spread = torch.distributions.Categorical(logits=logits_TV[:-1])
    logprobs = [0.0, *spread.log_prob(ids[0, 1:]).tolist()]
    entropies = [0.0, *spread.entropy().tolist()]
    return ([x * m for x, m in zip(values, row.mask_T, strict=True)] for values in (logprobs, entropies))  # type: ignore[return-value]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropies_equal_a_plain_forward(
    model: Any, rows: list[TokenRow], temperature: float
) -> None:
    by_ids = {tuple(row.ids_T): row for row in rows}
    for batch in micro_batches(rows, max_tokens=64, pad_id=PAD):
        logprobs_BT, entropy_BT = token_logprobs(model, batch, temperature=temperature)
        for i, ids in enumerate(unpadded(batch)):
            logprobs, entropies = plain(model, by_ids[tuple(ids)], temperature)
            assert logprobs_BT[i, : len(ids)].tolist() == pytest.approx(logprobs, abs=1e-5)
            assert entropy_BT[i, : len(ids)].tolist() == pytest.approx(entropies, abs=1e-5)
            assert not logprobs_BT[i, len(ids) :].any()


def test_what_the_engine_sampled_is_what_is_scored(model: Any) -> None:
    """The log-probs line up with those of sampling token by token."""
    torch.manual_seed(1)
    ids, mask, logprobs = [3, 4, 5], [0, 0, 0], [0.0, 0.0, 0.0]
    for _ in range(6):
        with torch.no_grad():
            spread = torch.distributions.Categorical(logits=model(torch.tensor([ids])).logits[0, -1])
        token = spread.sample()
        ids, mask, logprobs = [*ids, int(token)], [*mask, 1], [*logprobs, float(spread.log_prob(token))]
    (batch,) = micro_batches([TokenRow(ids, mask, logprobs, [1.0] * 9)], max_tokens=99, pad_id=PAD)
    torch.testing.assert_close(token_logprobs(model, batch)[0], batch.logprobs_BT, atol=1e-5, rtol=0)


def gradient_of(model: Any, batch: Batch) -> torch.Tensor:
    model.zero_grad()
    logprobs_BT, _ = token_logprobs(model, batch, temperature=0.8)
    logprobs_BT.sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_chunks_of_the_vocabulary_change_neither_value_nor_gradient(
    model: Any, rows: list[TokenRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch,) = micro_batches(rows, max_tokens=999, pad_id=PAD)
    whole, gradient = token_logprobs(model, batch), gradient_of(model, batch)
    monkeypatch.setattr(batches, "_CHUNK_LOGITS", 64 * 7)
    torch.testing.assert_close(token_logprobs(model, batch), whole)
    torch.testing.assert_close(gradient_of(model, batch), gradient)


def test_a_model_that_caps_its_logits(random_row: Callable[..., TokenRow]) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=2.0,
        initializer_range=0.3,
        attn_implementation="eager",
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    model: Any = Gemma2ForCausalLM(config).eval()
    row = random_row(random.Random(5))
    (batch,) = micro_batches([row, random_row(random.Random(6))], max_tokens=999, pad_id=PAD)
    logprobs_BT, _ = token_logprobs(model, batch)
    index = unpadded(batch).index(row.ids_T)
    expected, _ = plain(model, row, 1.0)
    assert logprobs_BT[index, : len(row.ids_T)].tolist() == pytest.approx(expected, abs=1e-5)
