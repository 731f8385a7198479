"""Servers that die, hang and come back: routed around, filled again, and never left behind."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from serving import LAUNCH, answer, at, server_engine, started  # type: ignore[import-not-found]
from tiny import Tiny  # type: ignore[import-not-found]

from envrl.engine.vllm import fleet
from envrl.engine.vllm.fleet import Fleet
from envrl.engine.vllm.server import ServerEngine
from envrl.errors import EngineError, StageError
from envrl.model.weights import Weights

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def pair(pristine: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerEngine]:
    """Two servers, which are looked at often."""
    settings = (*LAUNCH, "vllm_mode.replicas=2", "vllm_mode.retry_timeout_s=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "HEARTBEAT_S", 0.2)
        async with started(pristine, *settings, directory=tmp_path_factory.mktemp("pair"), eos=[]) as engine:
            yield engine


@pytest.fixture
async def servers(pair: ServerEngine) -> Fleet:
    """With nobody at them."""
    for episode in list(pair._servers._homes):
        await pair.release(episode)
    return pair._servers


async def test_turns_stay_at_the_server_that_was_least_busy(servers: Fleet) -> None:
    homes = {str(i): await servers.server_of(str(i)) for i in range(6)}
    assert sorted(Counter(homes.values()).values()) == [3, 3]
    assert all([await servers.server_of(episode) is home for episode, home in homes.items()])
    for episode in [episode for episode, home in homes.items() if home is homes["0"]]:
        servers.release(episode)
    assert {await servers.server_of(episode) for episode in ("6", "7", "8")} == {homes["0"]}


async def test_a_server_that_is_killed_costs_its_turns_a_retry(
    pair: ServerEngine, servers: Fleet, pristine: Tiny
) -> None:
    """The other one takes them over; it comes back, with weights that changed while it was down."""
    tiny = Tiny(copy.deepcopy(pristine.model), pristine.tokenizer, pristine.folder)
    expected = [await turn for turn in turns(pair)]
    counted = await pair.stats()
    running = turns(pair)
    await asyncio.sleep(0.2)
    dead = await servers.server_of("0")
    first = send(dead, signal.SIGKILL)
    assert [(await turn).ids for turn in running] == [turn.ids for turn in expected]
    recovery = dead.recovery
    assert recovery is not None
    tiny.change()
    await pair.load_weights(Weights(tiny.model), 1)
    assert await tiny.difference(pair) < 1e-4
    await recovery
    assert pid(dead) != first
    for episode in [*map(str, range(8)), "probe"]:
        await pair.release(episode)
    for other in ("a", "b"):  # the probe goes to the one, then to the other
        assert await tiny.difference(pair) < 1e-4
        await pair.release("probe")
        await servers.server_of(other)
    assert (await pair.stats()).prompt_tokens >= counted.prompt_tokens + 8 * 100


async def test_a_server_that_hangs_is_given_up(pair: ServerEngine, servers: Fleet) -> None:
    hung = await servers.server_of("a")
    running = asyncio.create_task(answer(pair, max_tokens=300))
    await asyncio.sleep(0.2)
    first = send(hung, signal.SIGSTOP)
    assert len((await running).ids) == 300
    assert await over(lambda: not members(first))
    assert hung.recovery is not None


async def test_servers_that_keep_dying_end_the_run(
    pair: ServerEngine, servers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the pair does not survive: the last of its tests."""

    async def play() -> None:
        while True:
            await answer(pair)

    monkeypatch.setattr("envrl.child.MAX_DEATHS", 1)
    send(await servers.server_of("a"), signal.SIGKILL)
    with pytest.raises(StageError, match=r"its server died \d times in a row; the end of .*vllm-\d\.log"):
        await play()


async def test_a_running_server_that_goes_is_told_of_and_used_again_when_it_is_back(
    untied: Tiny, running: dict[str, Any]
) -> None:
    server = running["untied"]
    url = await server.url()
    async with started(untied, *at(url), "vllm_mode.retry_timeout_s=1", eos=[]) as engine:
        turn = asyncio.create_task(answer(engine, max_tokens=900))
        await asyncio.sleep(0.2)
        os.kill(server.pid, signal.SIGKILL)
        told = rf"no vLLM server is up at {url} \(waited 1 s\); mend: .* raise vllm_mode\.retry_timeout_s"
        with pytest.raises(EngineError, match=told):
            await turn
        assert await server.url() == url  # it has random weights now
        assert await over(lambda: engine._servers._replicas[0].recovery is None)
        assert await untied.difference(engine) < 1e-4


async def test_a_server_that_cannot_start_is_quoted(tiny: Tiny, tmp_path: Path) -> None:
    engine = server_engine(tiny, *LAUNCH, "vllm_mode.quantization=nope", directory=tmp_path)
    with pytest.raises(StageError) as refusal:
        await engine.start()
    assert "vllm_mode.launch: its server ended with status " in str(refusal.value)
    assert "Unknown quantization method: nope" in str(refusal.value)


RUN = """
import asyncio, sys
from pathlib import Path
from serving import child
from tiny import Tiny
async def main():
    server = child(Tiny(None, None, Path(sys.argv[1])), Path(sys.argv[2]))
    await server.url()
    print(server.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_no_server_outlives_its_run(tiny: Tiny, tmp_path: Path) -> None:
    """However the run ends; nor does any of its processes, or anything in shared memory."""
    before = litter()
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RUN, str(tiny.folder), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **path}) as run:
        assert run.stdout is not None
        group = int(run.stdout.readline())
        assert len(members(group)) > 1
        run.kill()
    assert await over(lambda: not members(group))
    assert litter() <= before


def turns(engine: ServerEngine) -> list[asyncio.Task[Any]]:
    """Of eight episodes, under way."""
    settings = [{"episode": str(seed), "seed": seed, "max_tokens": 300} for seed in range(8)]
    return [asyncio.create_task(answer(engine, **each)) for each in settings]


def pid(replica: Any) -> int:
    assert replica.process.pid is not None
    return int(replica.process.pid)


def send(replica: Any, number: int) -> int:
    """To the server's leader, whose id is returned."""
    os.kill(pid(replica), number)
    return pid(replica)


async def over(test: Callable[[], bool]) -> bool:
    """Whether it comes true within twenty seconds."""
    deadline = monotonic() + 20
    while not test() and monotonic() < deadline:
        await asyncio.sleep(0.05)
    return test()


def members(group: int) -> list[str]:
    """Processes of a group that have not ended, if only as zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, fields = stat.read_text().rpartition(")")
            state, _, its_group = fields.split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(name)
    return found


def litter() -> set[str]:
    """What lies in shared memory and no process uses."""
    used = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            used += maps.read_text()
    return {name for name in os.listdir("/dev/shm") if f"/dev/shm/{name}" not in used}
