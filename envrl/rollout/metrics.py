"""What a step's episodes say, as numbers for metrics.jsonl. Names follow TRL's where it has one.

`time/episode/*_s` says where the time of an episode goes: mean seconds in the engine's queue, prefill and
decode, in the environment (reset, steps, waiting for a session) and in our parsing and rendering, beside
the whole of it. What is left is waiting for the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import fmean, pstdev
from typing import Any

from envrl.engine.base import EngineStats
from envrl.rollout.inflight import Inflight
from envrl.stop import StopReason

Record = dict[str, Any]


def episode_metrics(records: Sequence[Record]) -> dict[str, float]:
    """Means over the episodes of one step; those that ended as error count only as such.

    Lengths are sampled tokens per episode, `tools/call_frequency` is calls per episode and
    `tools/failure_frequency` failed calls per call.
    """
    live = [r for r in records if r["stop"] != StopReason.ERROR]
    metrics: dict[str, float] = {
        "episodes": len(records),
        "episodes/errors": len(records) - len(live),
        "episodes/retries": sum(r["retries"] for r in records),
        "tokens": sum(r["tokens"] for r in records),
    }
    stops = Counter(r["stop"] for r in records)
    metrics |= {f"stop/{stop}": stops[stop] / len(records) for stop in StopReason}
    if live:
        metrics |= _scores(live) | _lengths(live) | _times(live)
    return metrics


def engine_metrics(spent: Sequence[EngineStats], *, episodes: int) -> dict[str, float]:
    """What the ranks' engines spent on so many episodes in all.

    `engine/prompt_tokens` counts every turn's whole history, and `engine/cached_fraction` is what share of
    it was not computed again.
    """
    total = sum(spent, EngineStats())
    return {
        "time/episode/queue_s": total.queue_s / episodes,
        "time/episode/prefill_s": total.prefill_s / episodes,
        "time/episode/decode_s": total.decode_s / episodes,
        "engine/prompt_tokens": total.prompt_tokens,
        "engine/cached_fraction": total.cached_tokens / max(total.prompt_tokens, 1),
        "rollout/preemptions": total.preemptions,
    }


def inflight_metrics(ranks: Sequence[Inflight]) -> dict[str, float]:
    """Episodes at once, summed over ranks; the limit is left out where there is none."""
    limit = sum(rank.limit for rank in ranks)
    return {
        "rollout/inflight_mean": sum(rank.mean for rank in ranks),
        "rollout/inflight_max": sum(rank.most for rank in ranks),
        **({"rollout/inflight_limit": limit} if isfinite(limit) else {}),
    }


def _scores(live: Sequence[Record]) -> dict[str, float]:
    metrics = _spread("reward", (r["reward"] for r in live), suffixes=("", "_std"))
    metrics |= _spread("success", (r["success"] for r in live), suffixes=("",))
    for term in {term: None for r in live for term in r["rewards"]}:
        metrics |= _spread(
            f"rewards/{term}", (r["rewards"].get(term) for r in live), suffixes=("/mean", "/std")
        )
    for env in {r["env"]: None for r in live}:
        own = [r for r in live if r["env"] == env]
        metrics |= _spread(f"env/{env}/reward", (r["reward"] for r in own), suffixes=("", "_std"))
        metrics |= _spread(f"env/{env}/success", (r["success"] for r in own), suffixes=("",))
        for name in {name: None for r in own for name in r["metrics"]}:
            metrics |= _spread(f"env/{env}/{name}", (r["metrics"].get(name) for r in own), suffixes=("",))
    return metrics


def _lengths(live: Sequence[Record]) -> dict[str, float]:
    tokens = [r["tokens"] for r in live]
    calls = sum(turn["calls"] for r in live for turn in r["turns"])
    failures = sum(turn["failures"] for r in live for turn in r["turns"])
    return {
        "completions/mean_length": fmean(tokens),
        "completions/min_length": min(tokens),
        "completions/max_length": max(tokens),
        "turns/mean": fmean(len(r["turns"]) for r in live),
        "tools/call_frequency": calls / len(live),
        "tools/failure_frequency": failures / calls if calls else 0.0,
        "invalid_actions": failures / len(live),
    }


def _times(live: Sequence[Record]) -> dict[str, float]:
    environment = [r["reset_s"] + sum(turn["step_s"] for turn in r["turns"]) for r in live]
    parse = [r["prompt_s"] + sum(turn["parse_s"] for turn in r["turns"]) for r in live]
    return {
        "time/episode/environment_s": fmean(environment),
        "time/episode/parse_s": fmean(parse),
        "time/episode/duration_s": fmean(r["duration_s"] for r in live),
    }


def _spread(name: str, values: Iterable[float | None], *, suffixes: tuple[str, ...]) -> dict[str, float]:
    """Mean and, with a second suffix, standard deviation of the values that are there."""
    given = [float(value) for value in values if value is not None]
    if not given:
        return {}
    return dict(zip((f"{name}{suffix}" for suffix in suffixes), (fmean(given), pstdev(given)), strict=False))
