"""Rates, intervals and estimators against known numbers, and the file they are kept in."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envrl.summary import (
    Summary,
    evaluation_of,
    machine,
    mean_interval,
    paired_change,
    pass_at_k,
    success_interval,
    wilson,
)


def record(group: int, success: bool | None = True, **changes: Any) -> dict[str, Any]:
    """An episode of two turns, the second with a failed call."""
    plain = {"group": group, "seed": 7 * group, "success": success, "reward": float(bool(success))}
    return {
        **plain,
        "stop": "done",
        "turns": [{"failures": 0}, {"failures": 1}],
        "metrics": {"moves": 4},
        **changes,
    }


BROKEN = {"success": None, "reward": None, "stop": "error", "turns": [], "metrics": {}}


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [  # scipy.stats.binomtest(successes, n).proportion_ci(0.95, "wilson")
        (50, 100, 0.4038315303659956, 0.5961684696340044),
        (0, 10, 0.0, 0.27753279986288926),
        (10, 10, 0.7224672001371109, 1.0),
        (7, 50, 0.06950833427016292, 0.26186193710585537),
        (372, 512, 0.6863742152137727, 0.7633763739117959),
    ],
)
def test_wilson_gives_the_numbers_of_scipy(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes / n, n) == pytest.approx((low, high), abs=1e-12)


def test_one_sample_per_task_gives_the_plain_wilson_interval() -> None:
    tasks = [[i < 13] for i in range(40)]
    assert success_interval(tasks) == pytest.approx(wilson(13 / 40, 40), abs=1e-3)


def test_samples_that_always_agree_count_once() -> None:
    agreeing = [[i < 13] * 8 for i in range(40)]
    assert success_interval(agreeing) == pytest.approx(success_interval([[i < 13] for i in range(40)]))


def test_independent_samples_count_each() -> None:
    assert success_interval([[True, False]] * 50) == pytest.approx(wilson(0.5, 100))


def test_all_solved_counts_tasks_not_samples() -> None:
    assert success_interval([[True] * 8] * 20) == pytest.approx(wilson(1.0, 20))


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=30))
def test_the_interval_holds_the_rate_and_stays_within_bounds(tasks: list[list[bool]]) -> None:
    low, high = success_interval(tasks)
    rate = sum(sum(task) / len(task) for task in tasks) / len(tasks)
    assert 0 <= low <= rate + 1e-9
    assert rate - 1e-9 <= high <= 1


@pytest.mark.parametrize(("n", "c", "k"), [(8, 3, 1), (8, 3, 4), (5, 0, 3), (5, 5, 2), (6, 4, 3)])
def test_pass_at_k_is_the_share_of_draws_with_a_success(n: int, c: int, k: int) -> None:
    draws = [any(draw) for draw in combinations([i < c for i in range(n)], k)]
    assert pass_at_k(n, c, k) == pytest.approx(sum(draws) / len(draws))


def test_an_evaluation_counts_what_happened() -> None:
    records = [record(0), record(1, False, stop="max_turns", reward=-1.0), record(2), record(3)]
    found = evaluation_of(records, "grpo", "lake")
    assert found["success_rate"] == 0.75
    assert found["success_ci95"] == pytest.approx(list(wilson(0.75, 4)))
    assert (found["reward_mean"], found["reward_std"]) == (0.5, pytest.approx(math.sqrt(0.75)))
    assert (found["turns_mean"], found["invalid_actions_mean"]) == (2, 1)
    assert found["stops"] == {"done": 3, "max_turns": 1}
    assert found["metrics"] == {"moves": 4}
    assert "pass_at_k" not in found


def test_broken_episodes_are_counted_and_left_out_of_every_mean() -> None:
    whole = evaluation_of([record(0), record(1, False)], "grpo", "lake")
    found = evaluation_of([record(0), record(1, False), record(2, **BROKEN)], "grpo", "lake")
    assert (found["episodes"], found["unscored"], found["stops"]["error"]) == (3, 1, 1)
    for key in ("success_rate", "success_ci95", "reward_mean", "turns_mean", "invalid_actions_mean"):
        assert found[key] == whole[key]


def test_an_environment_without_success_or_reward_has_none() -> None:
    found = evaluation_of([record(0, None, reward=None)], "grpo", "chat")
    assert found["success_rate"] is found["success_ci95"] is found["reward_mean"] is None
    assert found["unscored"] == 1


def test_no_episode_at_all_is_no_crash() -> None:
    assert evaluation_of([], "grpo", "lake")["episodes"] == 0


def test_samples_of_a_task_give_avg_and_pass_at_k() -> None:
    outcomes = [[True, False, False, False], [False] * 4, [True] * 4]
    records = [record(group, success) for group, task in enumerate(outcomes) for success in task]
    found = evaluation_of(records, "grpo", "lake", samples=4)
    assert found["avg_at_k"] == {"4": pytest.approx(5 / 12)}
    assert found["pass_at_k"] == pytest.approx({"1": 5 / 12, "2": (0.5 + 0 + 1) / 3, "4": 2 / 3})
    assert found["success_ci95"] == pytest.approx(list(success_interval(outcomes)))


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    summary = Summary("digest", stages=["check"], machine=machine("H200"), error="Fehler: 你好")
    summary.add(evaluation_of([record(0)], "warm_start", "lake", samples=2, step=3))
    summary.write(tmp_path)
    assert Summary.read(tmp_path) == summary
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_summary_holds_no_number_that_json_lacks(tmp_path: Path) -> None:
    path = Summary("digest", train={"steps": 1, "grad_norm": math.nan}).write(tmp_path)
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["train"]["grad_norm"] is None


def test_no_summary_yet_is_none(tmp_path: Path) -> None:
    assert Summary.read(tmp_path) is None


def test_an_evaluation_made_again_replaces_the_old_one() -> None:
    summary = Summary("digest")
    for success in (False, True):
        summary.add(evaluation_of([record(0, success)], "grpo", "lake"))
        summary.add(evaluation_of([record(0, success)], "grpo", "lake", step=5))
    assert [(e["success_rate"], e.get("step")) for e in summary.evaluations] == [(1, None), (1, 5)]


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    # mean 3, sample variance 2.5: scipy.stats.norm.interval(0.95, 3, sqrt(2.5 / 5))
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx([1.6140961756503, 4.3859038243497])


def test_a_change_is_paired_by_task() -> None:
    before = [record(i, i < 4) for i in range(10)] + [record(99, True)]
    after = [record(i, i < 7) for i in range(10)] + [record(98, False), record(3) | BROKEN]
    change = paired_change(before, after, since="warm_start")
    assert change is not None
    assert (change["since"], change["tasks"], change["success"]) == ("warm_start", 10, pytest.approx(0.3))
    assert change["success_ci95"] == pytest.approx(mean_interval([0.0] * 7 + [1.0] * 3))


def test_no_change_is_told_from_fewer_than_two_common_tasks() -> None:
    assert paired_change([record(1)], [record(1), record(2)], since="warm_start") is None
