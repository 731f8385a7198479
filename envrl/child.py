"""Servers of ours as child processes, which are started again when they have died and end when we do.

A child leads a process group of its own and reads a pipe that only this process holds: when this process
goes, however it goes, the pipe ends and the child ends its group.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from envrl.errors import StageError

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_DEATHS = 3
"""In a row, without work done between them."""
POLL_S = 0.05
TAIL_LINES = 15
_ERROR = re.compile(r"\b\w*(Error|Exception): ")


class ChildServer:
    """An HTTP server with a /health, started when its address is first asked for and when it has died."""

    def __init__(
        self,
        name: str,
        log_file: Path,
        command: Callable[[socket.socket], Sequence[str]],
        *,
        environment: Mapping[str, str],
        start_timeout_s: float,
        mend: str,
        patience_s: float | None,
        stop_timeout_s: float,
    ) -> None:
        """`command` starts a server at a bound socket, which the child inherits; `name` and `mend` are told.

        A server that lives but has not answered for `patience_s` is replaced; `stop_timeout_s` is what it has
        to end by itself.
        """
        self._name = name
        self._log_file = log_file
        self._command = command
        self._environment = environment
        self._start_timeout_s = start_timeout_s
        self._mend = mend
        self._patience_s = patience_s
        self._stop_timeout_s = stop_timeout_s
        self._one_at_a_time = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._log_begins = 0
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        """Of the child, which is also its process group."""
        return self._process.pid if self._process else None

    @property
    def _url(self) -> str:
        return f"http://{HOST}:{self._port}"

    async def url(self) -> str:
        """Its address. Raises StageError with the end of its log where it cannot be started."""
        async with self._one_at_a_time:
            if self._process is not None and not await self._is_up():
                self._died()
            while self._process is None:
                await self._start()
            return self._url

    def worked(self) -> None:
        """It has done what it is for, so deaths are counted anew."""
        self._deaths = 0

    async def close(self) -> None:
        """Lets it end by itself, then kills what is left of its process group."""
        if self._process is None:
            return
        self._process.terminate()  # the leader alone: it ends its own children
        deadline = monotonic() + self._stop_timeout_s
        while self._has_group() and monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        self._kill()

    async def _is_up(self) -> bool:
        """Whether it lives, and answers within our patience."""
        assert self._process is not None
        deadline = None if self._patience_s is None else monotonic() + self._patience_s
        while self._process.poll() is None:
            if await answers(self._port):
                return True
            if deadline is not None and monotonic() > deadline:
                log.warning("%s: its server has not answered for %g s", self._name, self._patience_s)
                return False
            await asyncio.sleep(POLL_S)
        return False

    def _died(self) -> None:
        self._kill()
        self._deaths += 1
        log.warning("%s: its server died; see %s", self._name, self._log_file)
        if self._deaths >= MAX_DEATHS:
            raise StageError(self._story(f"its server died {self._deaths} times in a row"))

    async def _start(self) -> None:
        started = monotonic()
        with _bound(self._port) as listener:
            self._port = listener.getsockname()[1]
            self._process = self._spawn(listener)
        atexit.register(self._end)
        try:
            while not await answers(self._port):
                status = self._process.poll()
                if status is not None and status < 0:  # killed, by somebody or for want of memory
                    return self._died()
                if status is not None:
                    raise StageError(self._story(f"its server ended with status {status}"))
                if monotonic() - started > self._start_timeout_s:
                    late = f"its server was not up after {self._start_timeout_s:g} s; {self._mend}"
                    raise StageError(self._story(late))
                await asyncio.sleep(POLL_S)
        except BaseException:
            self._kill()
            raise
        log.info("%s: serving at %s after %.1f s", self._name, self._url, monotonic() - started)

    def _spawn(self, listener: socket.socket) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, sys.path))  # what can be imported here can be there
        with self._log_file.open("ab") as output:
            self._log_begins = output.tell()
            return subprocess.Popen(
                self._command(listener),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[listener.fileno()],
                start_new_session=True,
                env={**self._environment, "PYTHONPATH": path},
            )

    def _has_group(self) -> bool:
        """Whether anyone is left in its process group."""
        assert self._process is not None
        self._process.poll()  # or its leader would stay, as a zombie
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _end(self) -> None:
        """At exit, where nobody has closed it."""
        assert self._process is not None
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self._stop_timeout_s)
        self._kill()

    def _kill(self) -> None:
        """The whole group, at once."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self._end)
        with suppress(ProcessLookupError):  # nobody is left in it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def _story(self, what: str) -> str:
        """With the end of its log, and the first error before that: later ones often just follow from it."""
        with self._log_file.open(errors="replace") as file:
            file.seek(self._log_begins)
            lines = file.read().splitlines()
        earlier, end = lines[:-TAIL_LINES], lines[-TAIL_LINES:]
        first = next(([line, "..."] for line in earlier if _ERROR.search(line)), [])
        return "\n".join([f"{self._name}: {what}; the end of {self._log_file}:", *first, *end])


def _bound(port: int) -> socket.socket:
    """A socket at this port of the loopback, or at another where it is taken; 0 is any.

    Whoever has it holds the port, and until somebody listens there a connection is refused.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError:
        listener.bind((HOST, 0))
    return listener


async def answers(port: int) -> bool:
    """Whether a server there says that it is well."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        return b" 200 " in await asyncio.wait_for(reader.readline(), 1)
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


def end_with_parent(grace_s: float = 0.0) -> None:
    """In the child, in a thread of its own: waits for the end of the parent, then ends the process group.

    With a grace the leader is asked first, and may clean up after itself.
    """
    os.read(0, 1)  # the parent never writes into this pipe: it ends when the parent does
    if grace_s:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
    os.killpg(0, signal.SIGKILL)
