from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from envrl.env import Environment, Face, tool
from envrl.env.host import Host, abandoned
from envrl.errors import SessionLost, StepTimeout


class Bell(Environment):
    """Notes the thread of every call; `wait` blocks until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.closed = 0
        self.gate = threading.Event()

    def _note(self) -> None:
        self.threads.append(threading.get_ident())

    def instructions(self, face: Face) -> str:
        return ""

    def reset(self, *, seed: int | None = None, **row: Any) -> str:
        self._note()
        return f"seed {seed}"

    @tool
    def ring(self, times: int = 1) -> str:
        """Rings.

        Args:
            times: How often.
        """
        self._note()
        if times < 1:
            raise ValueError("ring at least once")
        return "ding " * times

    @tool
    def wait(self) -> str:
        """Waits for the gate."""
        self._note()
        self.gate.wait(10)
        return "open"

    def close(self) -> None:
        self._note()
        self.closed += 1


class BlockingBell(Bell):
    blocking = True

    @tool
    def stop(self) -> str:
        """Raises what a future cannot carry."""
        raise StopIteration(3)


class AsyncBell(Bell):
    async def reset(self, *, seed: int | None = None, **row: Any) -> str:  # type: ignore[override]
        await asyncio.sleep(0)
        return f"seed {seed}"

    @tool
    async def sleep(self, seconds: float) -> str:
        """Sleeps."""
        await asyncio.sleep(seconds)
        return "awake"

    @tool
    async def give_up(self) -> str:
        """Raises its own TimeoutError."""
        raise TimeoutError("mine")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


async def play(host: Host) -> list[Any]:
    bell = host.environment
    assert isinstance(bell, Bell)
    try:
        seen = [await host.call(bell.reset, 5, seed=7, extra="column")]
        for times in (1, 2):
            seen.append(await host.call(bell.ring, 5, times=times))
    finally:
        await host.close()
    return seen


def eventually(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.005)
    return happened()


@pytest.mark.parametrize("kind", [Bell, BlockingBell, AsyncBell])
def test_an_episode(kind: type[Bell]) -> None:
    bell = kind()
    assert asyncio.run(play(Host(bell))) == ["seed 7", "ding ", "ding ding "]
    assert bell.closed == 1


def test_plain_calls_run_inline() -> None:
    bell = Bell()
    asyncio.run(play(Host(bell)))
    assert set(bell.threads) == {threading.get_ident()}


def test_blocking_calls_share_one_thread_of_their_own() -> None:
    bells = [BlockingBell(), BlockingBell()]

    async def together() -> None:
        await asyncio.gather(*(play(Host(bell)) for bell in bells))

    asyncio.run(together())
    first, second = (set(bell.threads) for bell in bells)
    assert len(first) == len(second) == 1
    assert len(first | second | {threading.get_ident()}) == 3
    assert len(bells[0].threads) == 4


@pytest.mark.parametrize("kind", [Bell, BlockingBell])
def test_what_the_environment_raises_comes_through(kind: type[Bell]) -> None:
    async def ring() -> None:
        host = Host(kind())
        try:
            await host.call(host.environment.ring, 5, times=0)  # type: ignore[attr-defined]
        finally:
            await host.close()
        assert not host.lost

    with pytest.raises(ValueError, match="at least once"):
        asyncio.run(ring())


def test_an_exception_that_no_future_carries() -> None:
    async def stop() -> None:
        bell = BlockingBell()
        host = Host(bell)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await host.call(bell.stop, 5)
        await host.close()

    asyncio.run(stop())


def test_a_blocking_call_does_not_stall_the_loop() -> None:
    async def race() -> int:
        bell = BlockingBell()
        host = Host(bell)
        waiting = asyncio.create_task(host.call(bell.wait, 5))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.001)
            ticks += not waiting.done()
        bell.gate.set()
        assert await waiting == "open"
        await host.close()
        return ticks

    assert asyncio.run(race()) == 20


def test_a_stuck_thread_is_left_behind_and_closes_itself() -> None:
    bell = BlockingBell()
    before = abandoned()

    async def stuck() -> None:
        host = Host(bell)
        with pytest.raises(StepTimeout, match=r"wait took longer than 0.02 s.*scheduler.step_timeout_s"):
            await host.call(bell.wait, 0.02)
        assert host.lost
        with pytest.raises(SessionLost):
            await host.call(bell.ring, 1)
        await host.close()

    asyncio.run(stuck())
    assert abandoned() == before + 1
    assert bell.closed == 0
    bell.gate.set()
    assert eventually(lambda: abandoned() == before)
    assert bell.closed == 1
    assert len(set(bell.threads)) == 1


def test_a_cancelled_blocking_call_is_left_behind_too() -> None:
    bell = BlockingBell()

    async def cancelled() -> None:
        host = Host(bell)
        waiting = asyncio.create_task(host.call(bell.wait, None))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert host.lost
        await host.close()

    asyncio.run(cancelled())
    bell.gate.set()
    assert eventually(lambda: bell.closed == 1)


def test_an_async_call_that_is_late_is_cancelled_and_closed() -> None:
    bell = AsyncBell()

    async def late() -> None:
        host = Host(bell)
        with pytest.raises(StepTimeout, match="sleep took longer than"):
            await host.call(bell.sleep, 0.01, seconds=5)
        assert host.lost
        await host.close()

    asyncio.run(late())
    assert bell.closed == 1


def test_an_environments_own_timeout_error_is_no_deadline() -> None:
    bell = AsyncBell()

    async def own() -> None:
        host = Host(bell)
        with pytest.raises(TimeoutError, match="mine"):
            await host.call(bell.give_up, 5)
        assert not host.lost

    asyncio.run(own())


def test_closing_twice_closes_once() -> None:
    bell = BlockingBell()

    async def twice() -> None:
        host = Host(bell)
        await host.close()
        await host.close()

    asyncio.run(twice())
    assert bell.closed == 1


def test_a_close_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envrl.env.host.CLOSE_TIMEOUT_S", 0.02)
    bell = BlockingBell()
    monkeypatch.setattr(bell, "close", bell.wait)
    before = abandoned()
    asyncio.run(Host(bell).close())
    assert abandoned() == before + 1
    bell.gate.set()
    assert eventually(lambda: abandoned() == before)


def test_a_stuck_thread_does_not_keep_python_alive() -> None:
    code = """
import asyncio, time
from envrl.env import environment_class
from envrl.env.host import Host
class Stuck(environment_class("frozen_lake")):
    blocking = True
    def move(self): time.sleep(600)
async def main():
    host = Host(Stuck())
    try:
        await host.call(host.environment.move, 0.01)
    except TimeoutError:
        pass
    except Exception as error:
        print(type(error).__name__)
    await host.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "StepTimeout"), done.stderr
