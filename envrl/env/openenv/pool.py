"""Pool: the sessions of one source."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Protocol

from websockets.exceptions import InvalidMessage, InvalidStatus

from envrl.env.openenv.sessions import NOT_YET, Full, Session
from envrl.errors import StageError
from envrl.spec import SessionSpec

log = logging.getLogger(__name__)

MAX_PAUSE_S = 1.0
"""Between two attempts to open a session."""
PREFLIGHT_PATIENCE_S = 10.0
"""For what will not get better there, because no episode runs that could give a session back."""
CLOSE_TIMEOUT_S = 5.0
"""For the closing of sessions at the end; the server ends those that are left by itself."""


class Server(Protocol):
    """Whoever answers at a URL."""

    async def url(self) -> str:
        """Its address; one that has died is started again first. Raises StageError."""

    def worked(self) -> None:
        """It has done its work: a session came back in one piece."""

    async def close(self) -> None:
        """Stops it, if it is ours."""


class Pool:
    """The sessions of one source: opened when asked for, first come, first served."""

    def __init__(self, key: str, server: Server, settings: SessionSpec, *, limit: int, reuse: bool) -> None:
        """`reuse`: a session that comes back serves the next episode."""
        self._key = key
        self._server = server
        self._settings = settings
        self._limit = limit
        self._reuse = reuse
        self._slots = asyncio.Semaphore(limit)
        self._first = asyncio.Lock()
        self._freed = asyncio.Event()
        self._idle: deque[Session] = deque()
        self._taken = 0
        self._closing: set[asyncio.Task[None]] = set()

    async def prepare(self, episodes: int) -> None:
        """Opens as many sessions as that, and keeps them. Raises StageError."""
        taken: list[Session] = []

        async def take() -> None:
            taken.append(await self.take(preflight=True))

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(episodes, self._limit)):
                    tasks.create_task(take())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for session in taken:
                self.give(session, unused=True)
            await self._closed()

    async def take(self, *, preflight: bool = False) -> Session:
        """A session for one episode. Raises StageError where none can be had, WorldError where it broke."""
        await self._slots.acquire()
        try:
            session = self._kept() or await self._open(preflight)
        except BaseException:
            self._slots.release()
            raise
        self._taken += 1
        return session

    def give(self, session: Session, *, unused: bool = False) -> None:
        """Takes a session back; one that broke, or whose environment raised, is closed and forgotten."""
        self._taken -= 1
        self._slots.release()
        if session.alive:
            self._server.worked()
        if session.alive and (self._reuse or unused) and not session.spoiled:
            self._idle.append(session)
            self._freed.set()
        else:
            self._background(session.close())

    async def close(self) -> None:
        """Closes what is idle. Episodes have given theirs back by now."""
        while self._idle:
            self._background(self._idle.popleft().close())
        await self._closed()

    def _kept(self) -> Session | None:
        while self._idle:
            session = self._idle.popleft()
            if session.alive:
                return session
            self._background(session.close())
        return None

    async def _open(self, preflight: bool) -> Session:
        """A new session; while the server has none, the first who came asks again and the others queue."""
        if not self._first.locked():
            with suppress(*NOT_YET):
                return await self._new()
        async with self._first:
            started, pause_s = monotonic(), 0.02
            while True:
                try:
                    return self._kept() or await self._new()
                except NOT_YET as error:
                    waited_s, patience_s = monotonic() - started, self._patience_s(error, preflight)
                    if waited_s + pause_s > patience_s:
                        raise StageError(self._refusal(error, patience_s)) from error
                self._freed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _new(self) -> Session:
        session = Session(await self._server.url(), self._settings)
        try:
            await session.open()
        except BaseException:
            self._background(session.close(), frees=False)
            raise
        return session

    def _patience_s(self, error: Exception, preflight: bool) -> float:
        """In the preflight a full server stays full, a deaf port deaf, and what is no such server is none."""
        whole, cause = self._settings.open_timeout_s, error.__cause__
        refused = isinstance(cause, InvalidStatus) and cause.response.status_code < 500  # above: not up yet
        hopeless = refused or isinstance(error, Full) or isinstance(cause, OSError | InvalidMessage)
        return min(PREFLIGHT_PATIENCE_S, whole) if preflight and hopeless else whole

    def _refusal(self, error: Exception, patience_s: float) -> str:
        path = f"env.{self._key}.sessions"
        if not isinstance(error, Full):
            where = "" if self._reuse else f"env.{self._key}.url and "  # a server of ours has none
            return f"env.{self._key}: {error}; tried for {patience_s:g} s (see {where}{path}.open_timeout_s)"
        have = self._taken + len(self._idle)
        return (
            f"env.{self._key}: {error.message} The run has {have} sessions there and needs {self._limit} "
            f"at once (waited {patience_s:g} s); mend: {path}.capacity={max(1, have)}, with which episodes "
            "wait for each other, or raise the server's own limit"
        )

    def _background(self, closing: Coroutine[Any, Any, None], *, frees: bool = True) -> None:
        """`frees`: the server may have room afterwards, so whoever waits for a session asks again."""
        task = asyncio.get_running_loop().create_task(closing)
        self._closing.add(task)
        task.add_done_callback(partial(self._gone, frees=frees))

    def _gone(self, task: asyncio.Task[None], *, frees: bool) -> None:
        self._closing.discard(task)
        if frees:
            self._freed.set()
        if not task.cancelled() and (error := task.exception()):
            log.info("closing a session: %s", error)

    async def _closed(self) -> None:
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT_S)
