from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envrl.engine.kv import KVCache, Pass, spare_bytes

POSITION = 2 * 2 * 2 * 4 * 4  # bytes: two layers, keys and values, two heads of four numbers


def filled(budget: int) -> KVCache:
    """A cache of two layers with one slot of 64 positions."""
    cache = KVCache({}, lambda: budget)
    cache.reserve(1, 1)
    for layer in range(2):
        cache.layer(layer, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    return cache


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 1000)), max_size=12))
def test_a_cache_stays_within_its_budget(wishes):
    budget = 64 * POSITION * 30
    cache = filled(budget)
    for slots, length in wishes:
        cache.reserve(min(slots, cache.room(length)), length)
        assert cache.nbytes <= budget
        keys, _ = cache.layer(1, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
        assert keys.shape[0] >= min(slots, cache.room(length))
        assert keys.shape[2] >= length


def test_one_slot_is_always_given():
    cache = filled(1)
    cache.reserve(1, 500)
    assert cache.room(1000) == 1
    assert cache.nbytes == 512 * POSITION


def test_growing_keeps_what_the_first_slots_hold():
    cache = filled(8 * 64 * POSITION)
    cache.reserve(8, 64)
    keys, values = cache.layer(0, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    before = keys.normal_().clone(), values.normal_().clone()
    cache.reserve(2, 200)
    after = cache.layer(0, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    assert after[0].shape == (2, 2, 256, 4)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[:, :, :64], old[:2])
        assert not new[:, :, 64:].any()


def test_a_place_that_is_not_stored_yet_has_nothing_to_move():
    cache = filled(64 * POSITION)
    keys, _ = cache.layer(0, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    before = keys.normal_().clone()
    cache.move([1], [0], 10)
    assert torch.equal(keys, before)


def test_the_budget_is_asked_for_anew_when_the_memory_may_have_served_others():
    budgets = iter([64, 128, 192])
    cache = KVCache({0: 1}, lambda: next(budgets))
    assert [cache.room(1), cache.room(1)] == [1, 1]
    cache.rest()
    assert [cache.room(1), cache.room(1)] == [2, 2]
    cache.clear()
    assert cache.room(1) == 3


def test_a_budget_by_default():
    assert spare_bytes(torch.device("cpu")) > 1 << 26


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_kernels_of_single_queries_agree(dtype):
    # a GPU takes the one, a CPU the other
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, heads, 8, generator=generator).to(dtype) for heads in (4, 2, 2))
    cache = KVCache({})
    cache.reserve(3, 20)
    keys, values = (tensor.normal_(generator=generator) for tensor in cache.layer(0, key, value))
    outputs = []
    for kernel in ("_fused", "_batched"):
        kv_pass = Pass(
            cache, [1, 2, 3], cached=[0, 7, 19], counts=[1, 1, 1], singles=3, device=torch.device("cpu")
        )
        (block,) = kv_pass._blocks
        shown = keys[:, :, : block.length], values[:, :, : block.length]
        outputs.append(getattr(block, kernel)(query, *shown, 0.3))
    assert torch.allclose(*outputs, atol=1e-6 if dtype is torch.float32 else 3e-2)
