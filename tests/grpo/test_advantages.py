from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envrl.grpo.advantages import deviation, group_advantages, is_flat

rewards = st.lists(st.none() | st.floats(-100, 100), min_size=2, max_size=12)


def test_sample_std_and_epsilon() -> None:
    most = 1 / (math.sqrt(2 / 3) + 1e-4)
    assert group_advantages([1.0, 2.0, 2.0, 3.0]) == pytest.approx([-most, 0, 0, most])


def test_unscaled_is_the_distance_from_the_mean() -> None:
    assert group_advantages([0.0, 1.0, None, 2.0], scale="none") == pytest.approx([-1, 0, 0, 1])


def test_failed_members_are_left_out_of_mean_and_std() -> None:
    with_failure = group_advantages([0.0, None, 1.0, 1.0])
    assert with_failure.pop(1) == 0.0
    assert with_failure == group_advantages([0.0, 1.0, 1.0])


def test_a_near_tie_beside_a_failure_is_flat() -> None:
    """The failure is no variance, and neither is the last digit (SkyRL#1801)."""
    rewards_G = [0.6667, 0.66670001, None, 0.6667]
    assert is_flat(rewards_G)
    assert group_advantages(rewards_G) == [0.0] * 4
    assert not is_flat([0.6667, 0.6669, None, 0.6667])


@pytest.mark.parametrize("rewards_G", [[], [None, None], [None, 3.0], [2.0, 2.0]])
def test_nothing_to_compare_is_flat(rewards_G: list[float | None]) -> None:
    assert group_advantages(rewards_G) == [0.0] * len(rewards_G)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_named(bad: float) -> None:
    with pytest.raises(ValueError, match=f"member 1 is {bad}"):
        group_advantages([0.0, bad, 1.0])


@given(rewards)
def test_advantages_are_centred_ordered_and_bounded(rewards_G: list[float | None]) -> None:
    advantages_G = group_advantages(rewards_G)
    assert sum(advantages_G) == pytest.approx(0, abs=1e-6)
    assert all(abs(a) <= math.sqrt(len(rewards_G)) for a in advantages_G)
    live = sorted((r, a) for r, a in zip(rewards_G, advantages_G, strict=True) if r is not None)
    assert [a for _, a in live] == sorted(a for _, a in live)


@given(rewards)
def test_trls_own_formula(rewards_G: list[float | None]) -> None:
    torch, trl = pytest.importorskip("torch"), pytest.importorskip("trl.trainer.utils")
    live = [r for r in rewards_G if r is not None]
    if len(live) < 2 or max(live) - min(live) < 1e-3:
        return
    rewards = torch.tensor([math.nan if r is None else r for r in rewards_G], dtype=torch.float64)
    expected = (rewards - rewards.nanmean()) / (trl.nanstd(rewards) + 1e-4)
    assert group_advantages(rewards_G) == pytest.approx(expected.nan_to_num(nan=0.0).tolist(), abs=1e-5)


@given(st.lists(st.lists(st.none() | st.floats(-100, 100), min_size=4, max_size=4), min_size=1, max_size=5))
def test_trls_own_formula_over_a_batch(rewards_of: list[list[float | None]]) -> None:
    """As its `scale_rewards="batch"`: the group's mean, the batch's std."""
    torch, trl = pytest.importorskip("torch"), pytest.importorskip("trl.trainer.utils")
    live = [r for rewards_G in rewards_of for r in rewards_G if r is not None]
    if len(live) < 2 or any(is_flat(rewards_G) for rewards_G in rewards_of):
        return
    rewards = torch.tensor(
        [[math.nan if r is None else r for r in g] for g in rewards_of], dtype=torch.float64
    )
    expected = (rewards - rewards.nanmean(1, keepdim=True)) / (trl.nanstd(rewards.flatten()) + 1e-4)
    for rewards_G, theirs in zip(rewards_of, expected.nan_to_num(nan=0.0).tolist(), strict=True):
        assert group_advantages(rewards_G, scale=deviation(live)) == pytest.approx(theirs, rel=1e-5, abs=1e-5)


def test_importing_the_package_loads_no_torch() -> None:
    program = "import sys, envrl.grpo; envrl.grpo.group_advantages([1, 0]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
