"""OpenEnv servers that live as long as the run: our own as a child process, others in a container."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import subprocess
import sys
from pathlib import Path
from socket import socket
from typing import Any

from envrl.child import ChildServer
from envrl.env.openenv import without_gradio
from envrl.errors import StageError

GRACE_S = 5.0
"""Beyond the deadline of a step, for a server that steps inline to answer again."""
STOP_TIMEOUT_S = 3.0
"""For the environments to close before the process group is killed."""
PLAIN = {"ENABLE_WEB_INTERFACE": "false", "OPENENV_MODE": "simulation"}
"""What openenv reads from the environment."""


def server_process(key: str, job: dict[str, Any], log_file: Path, *, start_timeout_s: float) -> ChildServer:
    """Serves one environment; `job` is what `python -m envrl.serve --child` reads."""

    def command(listener: socket) -> list[str]:
        task = json.dumps({**job, "fd": listener.fileno()})
        return [sys.executable, "-m", "envrl.serve", "--child", task]

    step_timeout_s = job["step_timeout_s"]
    return ChildServer(
        f"env.{key}",
        log_file,
        command,
        environment={**os.environ, **PLAIN},
        start_timeout_s=start_timeout_s,
        mend=f"raise env.{key}.sessions.open_timeout_s",
        patience_s=None if step_timeout_s is None else step_timeout_s + GRACE_S,
        stop_timeout_s=STOP_TIMEOUT_S,
    )


class Container:
    """An image that runs an OpenEnv server, through OpenEnv's provider. Not run: written without Docker."""

    def __init__(self, key: str, image: str, *, start_timeout_s: float) -> None:
        self._key = key
        self._image = image
        self._start_timeout_s = start_timeout_s
        self._one_at_a_time = asyncio.Lock()
        self._provider: Any = None
        self._url = ""

    async def url(self) -> str:
        """Its address; the container is started when it is first asked for. Raises StageError."""
        async with self._one_at_a_time:
            if self._provider is None:
                await asyncio.to_thread(self._start)
            return self._url

    def worked(self) -> None:
        """A container that dies is not started again."""

    async def close(self) -> None:
        """Stops and removes the container."""
        if self._provider is not None:
            await asyncio.to_thread(self._stop)

    def _start(self) -> None:
        with without_gradio():
            from openenv.core.containers.runtime import LocalDockerProvider
        atexit.register(self._stop)
        try:
            self._provider = LocalDockerProvider()
            self._url = self._provider.start_container(self._image)
            self._provider.wait_for_ready(self._url, timeout_s=self._start_timeout_s)
        except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError) as error:
            self._stop()
            raise StageError(f"env.{self._key}: image {self._image}: {error}") from error

    def _stop(self) -> None:
        provider, self._provider = self._provider, None
        atexit.unregister(self._stop)
        if provider is not None:
            provider.stop_container()
