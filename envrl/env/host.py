"""Host: where an environment's methods run, so that none can stall the loop or outlive its deadline.

A sync method of a non-blocking environment runs inline. An async one is awaited. A blocking
environment owns one thread for its life, and all its calls happen there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from envrl.env.base import Environment
from envrl.errors import SessionLost, StepTimeout

CLOSE_TIMEOUT_S = 10.0
"""How long an environment may take to close before it is left behind."""

_abandoned: set[_Worker] = set()


def abandoned() -> int:
    """Threads that are still stuck in a call which ran out of time."""
    return len(_abandoned)


class Host:
    """Runs one environment's methods, each with a deadline."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.lost = False
        """A call never came back, so the environment's state is unknown."""
        self._closed = False
        self._worker: _Worker | None = None

    async def call(
        self, method: Callable[..., Any], timeout_s: float | None, /, *args: Any, **arguments: Any
    ) -> Any:
        """Runs one bound method of the environment. Raises StepTimeout and whatever the method raises.

        A deadline cannot interrupt a method that runs inline: one that may take long has to be
        async, or its class `blocking`.
        """
        if self.lost:
            raise SessionLost(f"{type(self.environment).__name__} was left behind in an earlier call")
        if not self._threaded(method):
            try:
                result = method(*args, **arguments)
            except SystemExit as error:
                raise SessionLost(_exits(method, error)) from error
            return await self._within(result, method, timeout_s) if inspect.isawaitable(result) else result
        if self._worker is None:
            self._worker = _Worker()
        future = self._worker.submit(partial(method, *args, **arguments))
        result = await self._within(asyncio.wrap_future(future), method, timeout_s)
        return await self._within(result, method, timeout_s) if inspect.isawaitable(result) else result

    async def close(self) -> None:
        """Closes the environment, once. One that is stuck is closed by its own thread if it ever returns."""
        if self._closed:
            return
        self._closed = True
        try:
            if not (self.lost and self._worker):
                self.lost = False
                await self.call(self.environment.close, CLOSE_TIMEOUT_S)
        except StepTimeout:
            pass  # The episode is over; its thread is counted.
        finally:
            if self._worker and not self.lost:
                self._worker.stop()

    async def _within(self, result: Any, method: Callable[..., Any], timeout_s: float | None) -> Any:
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return await result
        except TimeoutError:
            if not deadline.expired():
                raise
            self._abandon()
            raise StepTimeout(
                f"{_name(method)} took longer than {timeout_s:g} s; raise scheduler.step_timeout_s"
            ) from None
        except SystemExit as error:
            raise SessionLost(_exits(method, error)) from error
        except asyncio.CancelledError as error:
            self._abandon()
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise SessionLost(f"{_name(method)} raised CancelledError") from error
            raise

    def _abandon(self) -> None:
        self.lost = True
        if self._worker:
            _abandoned.add(self._worker)
            if self._threaded(self.environment.close) and not self._closed:
                self._worker.submit(self.environment.close)
            self._worker.stop()

    def _threaded(self, method: Callable[..., Any]) -> bool:
        return self.environment.blocking and not inspect.iscoroutinefunction(method)


def _name(method: Callable[..., Any]) -> str:
    return getattr(method, "__name__", repr(method))


def _exits(method: Callable[..., Any], error: SystemExit) -> str:
    return f"{_name(method)} called sys.exit({error.code!r})"


class _Worker:
    """One thread that runs calls in their order. A daemon: a stuck call must not keep Python alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        Thread(target=self._run, name="envrl-environment", daemon=True).start()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, function))
        return future

    def stop(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                _settle(future, function)
        _abandoned.discard(self)


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    """Hands the outcome to whoever waits; nothing is judged here."""
    try:
        result = function()
    except StopIteration as error:
        # A future refuses StopIteration, and its waiter would wait for ever.
        future.set_exception(RuntimeError(f"raised StopIteration({error.value!r})"))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
