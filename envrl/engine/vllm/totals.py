"""Running totals of a vLLM engine's own statistics."""

from __future__ import annotations

from typing import Any

from envrl.engine.base import EngineStats


class Totals:
    """Adds up what vLLM tells its loggers after every step.

    It has what an engine calls of vLLM's StatLoggerBase; inheriting that would import vLLM.
    """

    def __init__(self) -> None:
        self._sums = dict.fromkeys(EngineStats.__dataclass_fields__, 0)

    def stats(self) -> EngineStats:
        """So far."""
        return EngineStats(**self._sums)

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Called by vLLM after a step; the second is its IterationStats, if it did anything."""
        if iteration_stats is None:
            return
        sums = self._sums
        sums["preemptions"] += iteration_stats.num_preempted_reqs
        for request in iteration_stats.finished_requests:
            sums["queue_s"] += request.queued_time
            sums["prefill_s"] += request.prefill_time
            sums["decode_s"] += request.decode_time
            sums["prompt_tokens"] += request.num_prompt_tokens
            sums["cached_tokens"] += request.num_cached_tokens

    def log_engine_initialized(self) -> None:
        """Called by vLLM; there is nothing to say."""

    def log(self) -> None:
        """Called by vLLM from time to time."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """Called by vLLM when it sleeps or wakes."""
