"""What vLLM and OpenMP read from the environment when they are imported. What the user has set stays."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # below it, every weight push warns of layers that hold no weights
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
_CPU = {
    "OMP_WAIT_POLICY": "passive",  # or idle threads spin against the engine's
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every server is pinned to the same first core
}


def prepare(environment: MutableMapping[str, str] = os.environ, *, threads: int) -> None:
    """To be called before torch is imported, with the CPU threads that one engine may use."""
    for name, value in {**_QUIET, **_CPU, "OMP_NUM_THREADS": str(threads)}.items():
        environment.setdefault(name, value)
    # The engine belongs into the process that was asked for it; on a CPU, a server's too.
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
