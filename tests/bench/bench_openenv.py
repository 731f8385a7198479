"""64 sessions on one loopback server from one event loop, against a bare WebSocket echo in the same run.

    python tests/bench/bench_openenv.py [sessions=64] [seconds=2] [rounds=5]

Rounds of both alternate; what is compared is the ratio of their medians, and the target is one half. The
echo is Starlette's, spoken to by the same client library: all that is left out is OpenEnv, and the game.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

TARGET = 0.5
ECHO = """
import socket, sys, uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
async def echo(websocket):
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)
app = Starlette(routes=[WebSocketRoute("/ws", echo)])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="error", ws_ping_interval=None)
uvicorn.Server(config).run([listener])
"""
MOVE = '{"type": "step", "data": {"tool": "move", "arguments": {"direction": "up"}}}'

Step = Callable[[], Awaitable[object]]


async def rate(steps: list[Step], seconds: float) -> float:
    """Round trips per second over all sessions, each of which waits for its own answers."""
    end = perf_counter() + seconds

    async def session(step: Step) -> int:
        count = 0
        while perf_counter() < end:
            await step()
            count += 1
        return count

    started = perf_counter()
    counts = await asyncio.gather(*map(session, steps))
    return sum(counts) / (perf_counter() - started)


@asynccontextmanager
async def echoes(sessions: int) -> AsyncIterator[list[Step]]:
    """The bare echo, in a process of its own."""
    from websockets.asyncio.client import ClientConnection, connect

    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"ws://127.0.0.1:{int(server.stdout.readline())}/ws"
        sockets = [await connect(url, proxy=None, ping_interval=None) for _ in range(sessions)]

        def step(socket: ClientConnection) -> Step:
            async def once() -> None:
                await socket.send(MOVE)
                await socket.recv()

            return once

        try:
            yield [step(socket) for socket in sockets]
        finally:
            await asyncio.gather(*(socket.close() for socket in sockets))
            server.terminate()


@asynccontextmanager
async def games(sessions: int) -> AsyncIterator[list[Step]]:
    """FrozenLake on a server of our own, played as a rollout plays it."""
    from envrl import compose
    from envrl.env.openenv.source import OpenEnvSource

    spec = compose(["env.frozen_lake.backend=server", f"env.frozen_lake.sessions.capacity={sessions}"])
    with tempfile.TemporaryDirectory() as folder:
        source = OpenEnvSource("frozen_lake", spec, Path(folder))
        await source.prepare(sessions)
        environments = [source.make() for _ in range(sessions)]
        for seed, environment in enumerate(environments):
            await environment.open()
            await environment.reset(seed=seed)  # type: ignore[misc]

        def step(environment: object, seed: int) -> Step:
            async def once() -> None:
                if environment.done:  # type: ignore[attr-defined]
                    await environment.reset(seed=seed)  # type: ignore[attr-defined]
                await environment.tools()["move"](direction="up")  # type: ignore[attr-defined]

            return once

        try:
            yield [step(environment, seed) for seed, environment in enumerate(environments)]
        finally:
            for environment in environments:
                await environment.close()
            await source.close()


async def main(sessions: int = 64, seconds: float = 2, rounds: int = 5) -> int:
    """Prints the rates and their ratio; 1 where the target is missed."""
    rates: dict[str, list[float]] = {"echo": [], "envrl": []}
    async with echoes(sessions) as echo, games(sessions) as envrl:
        for steps in (echo, envrl):
            await rate(steps, seconds / 4)
        for _ in range(rounds):
            rates["echo"].append(await rate(echo, seconds))
            rates["envrl"].append(await rate(envrl, seconds))
    for name, measured in rates.items():
        spread = f"{min(measured):.0f} to {max(measured):.0f}"
        print(f"{name:6} {median(measured):6.0f} round trips/s ({spread}), {sessions} sessions, one loop")
    ratio = median(rates["envrl"]) / median(rates["echo"])
    print(f"ratio of medians {ratio:.2f} (target: at least {TARGET})")
    return int(ratio < TARGET)


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    sys.exit(
        asyncio.run(
            main(**{name: float(value) if name == "seconds" else int(value) for name, value in given.items()})
        )
    )
