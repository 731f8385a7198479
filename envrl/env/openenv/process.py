"""OpenEnv servers that live as long as the run: our own as a child process, others in a container."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any

from envrl.env.openenv import without_gradio
from envrl.errors import StageError

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_DEATHS = 3
"""In a row, without a session that came back in one piece between them."""
POLL_S = 0.05
GRACE_S = 5.0
"""Beyond the deadline of a step, for a server that steps inline to answer again."""
STOP_TIMEOUT_S = 3.0
"""For the environments to close before the process group is killed."""
TAIL_LINES = 15
PLAIN = {"ENABLE_WEB_INTERFACE": "false", "OPENENV_MODE": "simulation"}
"""What openenv reads from the environment."""


class ServerProcess:
    """Serves one environment: started when its address is first asked for, and again when it has died.

    The child leads a process group of its own and reads a pipe that only this process holds: when this
    process goes, however it goes, the pipe ends and the child kills its group.
    """

    def __init__(self, key: str, job: dict[str, Any], log_file: Path, *, start_timeout_s: float) -> None:
        """`job` is what `python -m envrl.serve --child` reads; its `step_timeout_s` bounds our patience."""
        self._key = key
        self._job = job
        self._log_file = log_file
        self._start_timeout_s = start_timeout_s
        self._one_at_a_time = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        """Of the child, which is also its process group."""
        return self._process.pid if self._process else None

    async def url(self) -> str:
        """Its address. Raises StageError with the end of its log where it cannot be started."""
        async with self._one_at_a_time:
            if self._process is not None and not await self._is_up():
                self._died()
            while self._process is None:
                await self._start()
            return self._url

    async def _is_up(self) -> bool:
        """Whether it lives, and answers within the time that a step may take."""
        assert self._process is not None
        patience_s = self._job["step_timeout_s"]
        deadline = None if patience_s is None else monotonic() + patience_s + GRACE_S
        while self._process.poll() is None:
            if await self._healthy():
                return True
            if deadline is not None and monotonic() > deadline:
                log.warning("env.%s: its server has not answered for %g s", self._key, patience_s + GRACE_S)
                return False
            await asyncio.sleep(POLL_S)
        return False

    def session_returned(self) -> None:
        """A session came back in one piece, so deaths are counted anew."""
        self._deaths = 0

    async def close(self) -> None:
        """Lets its environments close, then kills what is left of its process group."""
        if self._process is None:
            return
        self._process.terminate()
        deadline = monotonic() + STOP_TIMEOUT_S
        while self._process.poll() is None and monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        self._kill()

    def _died(self) -> None:
        assert self._process is not None
        self._kill()
        self._deaths += 1
        log.warning("env.%s: its server died; see %s", self._key, self._log_file)
        if self._deaths >= MAX_DEATHS:
            raise StageError(self._story(f"its server died {self._deaths} times in a row"))

    async def _start(self) -> None:
        started = monotonic()
        with socket.socket() as port, self._log_file.open("ab") as output:
            # Bound here and listened to there: until the child is ready, a connection is refused.
            port.bind((HOST, 0))
            self._url = f"http://{HOST}:{port.getsockname()[1]}"
            self._process = self._spawn(port, output)
        atexit.register(self._kill)
        try:
            while not await self._healthy():
                status = self._process.poll()
                if status is not None and status < 0:  # killed, by somebody or for want of memory
                    return self._died()
                if status is not None:
                    raise StageError(self._story(f"its server ended with status {status}"))
                if monotonic() - started > self._start_timeout_s:
                    mend = f"raise env.{self._key}.sessions.open_timeout_s"
                    raise StageError(
                        self._story(f"its server was not up after {self._start_timeout_s:g} s; {mend}")
                    )
                await asyncio.sleep(POLL_S)
        except BaseException:
            self._kill()
            raise
        log.info("env.%s: serving at %s after %.1f s", self._key, self._url, monotonic() - started)

    def _spawn(self, port: socket.socket, output: IO[bytes]) -> subprocess.Popen[bytes]:
        job = json.dumps({**self._job, "fd": port.fileno()})
        return subprocess.Popen(
            [sys.executable, "-m", "envrl.serve", "--child", job],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[port.fileno()],
            start_new_session=True,
            env={**os.environ, **PLAIN, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    async def _healthy(self) -> bool:
        host, _, port = self._url.removeprefix("http://").partition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        try:
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            return b" 200 " in await asyncio.wait_for(reader.readline(), 1)
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()

    def _kill(self) -> None:
        """The whole group, at once."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self._kill)
        with suppress(ProcessLookupError):  # nobody is left in it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def _story(self, what: str) -> str:
        lines = self._log_file.read_text("utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([f"env.{self._key}: {what}; the end of {self._log_file}:", *lines])


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

    def session_returned(self) -> None:
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
