"""CPU seconds of a rollout, by whose code spends them: vLLM's, the environment's, or ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.v1.engine.llm_engine import LLMEngine

from envrl.env.frozen_lake import FrozenLake


class Stopwatch:
    """Adds up the CPU time of some methods of a class, each in the thread that runs it."""

    def __init__(self, cls: type, *names: str) -> None:
        self.cpu_s = 0.0
        for name in names:
            setattr(cls, name, self._timed(getattr(cls, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.cpu_s += time.thread_time() - started

        return timed


class Share:
    """What of the wall our own code took, on the event loop's thread and on the engine's.

    To be made in the event loop's thread, with a colocated engine running.
    """

    vllm = Stopwatch(LLMEngine, "step", "add_request")
    environment = Stopwatch(FrozenLake, "instructions", "reset", "move")

    def __init__(self) -> None:
        (engine,) = (thread.ident for thread in threading.enumerate() if thread.name == "vllm")
        assert engine
        self._clocks = [time.pthread_getcpuclockid(thread) for thread in (engine, threading.get_ident())]
        self._before = self._spent()

    def _spent(self) -> tuple[float, float, float]:
        both = sum(map(time.clock_gettime, self._clocks))
        return both, self.vllm.cpu_s, self.environment.cpu_s

    def parts(self, wall_s: float) -> dict[str, float]:
        """Since it was made."""
        both, vllm, env = (now - then for now, then in zip(self._spent(), self._before, strict=True))
        return {"envrl": (both - vllm - env) / wall_s, "vLLM": vllm / wall_s, "environment": env / wall_s}
