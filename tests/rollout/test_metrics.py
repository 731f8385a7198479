"""A step's numbers, counted by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from envrl.rollout.metrics import episode_metrics
from envrl.stop import StopReason


def record(**changes: Any) -> dict[str, Any]:
    """A solved episode of two turns, a call each."""
    plain = {"env": "a", "stop": StopReason.DONE, "retries": 0, "reward": 1.0, "rewards": {"env": 1.0}}
    whole = {"success": True, "turns": [turn()] * 2, "metrics": {}, "tokens": 10}
    return {**plain, **whole, "reset_s": 0.25, "prompt_s": 0.125, "duration_s": 4.0, **changes}


def turn(**changes: Any) -> dict[str, Any]:
    """One call, half a second of the environment's and a sixteenth of ours."""
    return {"calls": 1, "failures": 0, "step_s": 0.5, "parse_s": 0.0625, **changes}


BROKEN = record(
    stop=StopReason.ERROR, retries=2, reward=None, rewards={}, success=None, tokens=99, metrics={"moves": 77}
)


def test_rewards_and_successes_are_means_over_what_has_them() -> None:
    metrics = episode_metrics(
        [
            record(),
            record(reward=0.0, success=False, rewards={"env": 0.0, "brevity": 0.5}),
            record(reward=None, success=None, rewards={"env": None, "brevity": 1.0}),
        ]
    )
    assert (metrics["reward"], metrics["reward_std"], metrics["success"]) == (0.5, 0.5, 0.5)
    assert (metrics["rewards/env/mean"], metrics["rewards/env/std"]) == (0.5, 0.5)
    assert (metrics["rewards/brevity/mean"], metrics["rewards/brevity/std"]) == (0.75, 0.25)


def test_environments_are_told_apart() -> None:
    metrics = episode_metrics(
        [
            record(metrics={"moves": 4}),
            record(reward=0.0, metrics={"moves": 6, "falls": 1}),
            record(env="b", reward=-1.0, success=False, metrics={"greens": 5}),
        ]
    )
    assert (metrics["env/a/reward"], metrics["env/b/reward"]) == (0.5, -1.0)
    assert (metrics["env/a/success"], metrics["env/b/success"]) == (1.0, 0.0)
    assert (metrics["env/a/moves"], metrics["env/a/falls"], metrics["env/b/greens"]) == (5.0, 1.0, 5.0)
    assert "env/b/moves" not in metrics


def test_lengths_calls_and_failures() -> None:
    failing = [turn(calls=3, failures=2)]
    metrics = episode_metrics([record(), record(tokens=4, turns=failing), record(tokens=1, turns=[])])
    lengths = [metrics[f"completions/{which}_length"] for which in ("mean", "min", "max")]
    assert lengths == [5.0, 1, 10]
    assert (metrics["turns/mean"], metrics["tokens"]) == (1.0, 15)
    assert metrics["tools/call_frequency"] == pytest.approx(5 / 3)
    assert metrics["tools/failure_frequency"] == pytest.approx(2 / 5)
    assert metrics["invalid_actions"] == pytest.approx(2 / 3)


def test_nobody_called_a_tool() -> None:
    silent = record(stop=StopReason.NO_TOOL_CALL, turns=[turn(calls=0)])
    assert episode_metrics([silent])["tools/failure_frequency"] == 0


def test_stops_are_shares_of_all_episodes() -> None:
    metrics = episode_metrics([record(), record(stop=StopReason.MAX_TURNS), record(), BROKEN])
    shares = {stop: metrics[f"stop/{stop}"] for stop in StopReason}
    assert {stop for stop, share in shares.items() if share} == {"done", "max_turns", "error"}
    assert (shares[StopReason.DONE], shares[StopReason.ERROR], sum(shares.values())) == (0.5, 0.25, 1.0)


def test_broken_episodes_count_only_as_such() -> None:
    alone, beside = episode_metrics([record()]), episode_metrics([record(), BROKEN])
    counted = ("episodes", "tokens", "stop/")
    for name, value in alone.items():
        assert name.startswith(counted) or beside[name] == value, name
    assert (beside["episodes"], beside["episodes/errors"], beside["episodes/retries"]) == (2, 1, 2)
    assert set(beside) == set(alone)


def test_nothing_but_broken_episodes() -> None:
    metrics = episode_metrics([BROKEN, BROKEN])
    assert (metrics["episodes/errors"], metrics["stop/error"]) == (2, 1.0)
    assert "reward" not in metrics


def test_records_that_were_stored_give_the_same_numbers() -> None:
    records = [record(), record(stop=StopReason.LENGTH), BROKEN]
    stored = json.loads(json.dumps(records))
    assert episode_metrics(stored) == episode_metrics(records)
    assert all(map(math.isfinite, episode_metrics(records).values()))
