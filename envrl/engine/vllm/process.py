"""vLLM servers that envrl starts."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from socket import socket
from typing import Any

from envrl.child import HOST, ChildServer
from envrl.engine.vllm.arguments import flags, gpus_of
from envrl.engine.vllm.environment import prepare
from envrl.engine.vllm.guard import GRACE_S
from envrl.spec import ServerSpec

QUIET = ["--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
_RANKS = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*")
"""What torchrun tells the trainer: a server that heard it would look for the trainer's ranks."""


def vllm_server(
    spec: ServerSpec,
    arguments: Mapping[str, Any],
    replica: int,
    *,
    directory: Path,
    backend: str,
    threads: int,
) -> ChildServer:
    """Serves a model by vLLM's engine arguments; `backend` is how it takes weights.

    Its log is vllm-<replica>.log in `directory`.
    """

    def command(listener: socket) -> list[str]:
        address = ["--host", HOST, "--port", str(listener.getsockname()[1])]
        transfer = ["--weight-transfer-config", json.dumps({"backend": backend})]
        guarded = [sys.executable, "-m", "envrl.engine.vllm.guard", arguments["model"]]
        return [*guarded, *address, *QUIET, *transfer, *flags(arguments)]

    return ChildServer(
        "vllm_mode.launch",
        directory / f"vllm-{replica}.log",
        command,
        environment=_environment(spec, replica, threads),
        start_timeout_s=spec.start_timeout_s,
        mend="raise vllm_mode.start_timeout_s",
        patience_s=spec.retry_timeout_s,
        stop_timeout_s=GRACE_S,
    )


def _environment(spec: ServerSpec, replica: int, threads: int) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not _RANKS.fullmatch(name)}
    environment.pop("LD_PRELOAD", None)  # vLLM in this process sets it for itself
    environment.pop("VLLM_API_KEY", None)  # or it would ask for the key
    prepare(environment, threads=threads)
    environment["VLLM_SERVER_DEV_MODE"] = "1"  # or there are no routes for weights
    if (gpus := gpus_of(spec, replica)) is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    return environment
