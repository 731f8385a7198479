"""How weights travel: the file in memory, and what vLLM's NCCL sender is told."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from safetensors.torch import load_file
from tiny import Tiny  # type: ignore[import-not-found]

from envrl.engine.vllm.client import Client
from envrl.engine.vllm.transfer import NcclTransfer, memory_file, write_safetensors
from envrl.model.weights import Weights

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_another_process_reads_what_was_written(tiny: Tiny, tmp_path: Path, dtype: torch.dtype) -> None:
    copy = "import shutil, sys; shutil.copyfile(*sys.argv[1:])"
    with memory_file() as (file, path):
        write_safetensors(file, Weights(tiny.model), dtype)
        subprocess.run([sys.executable, "-c", copy, path, str(tmp_path / "weights")], check=True)
    read = load_file(tmp_path / "weights")
    assert not os.path.exists(path)
    assert read.keys() == dict(Weights(tiny.model)).keys()
    assert all(torch.equal(read[name], value.to(dtype)) for name, value in Weights(tiny.model))


@asynccontextmanager
async def recorder() -> AsyncIterator[tuple[Client, list[tuple[str, Any]]]]:
    """An HTTP server that notes what it is asked, and has two workers."""
    calls: list[tuple[str, Any]] = []

    async def note(request: web.Request) -> web.Response:
        body = await request.read()
        calls.append((request.path, await request.json() if body else None))
        return web.json_response({"world_size": 2})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", note)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = Client(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield client, calls
    finally:
        await client.drop()
        await runner.cleanup()


async def test_workers_are_called_to_meet_the_trainer(tiny: Tiny) -> None:
    """Up to NCCL itself, which a CPU has not."""
    async with recorder() as (client, calls), NcclTransfer(torch.float32).staged(Weights(tiny.model)) as send:
        with pytest.raises(RuntimeError, match="accelerator"):
            await send(client, "run-1")
    (_, told) = calls.pop()
    assert [path for path, _ in calls] == ["/get_world_size"]
    meeting = told["init_info"]
    assert (meeting["master_address"], meeting["rank_offset"], meeting["world_size"]) == ("127.0.0.1", 1, 3)


async def test_every_sending_gives_the_weights_that_were_staged_for_it(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a server that comes back is filled while the next update begins."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

    class Unconnected(NCCLTrainerWeightTransferEngine):
        def __init__(self) -> None:
            self.sent: list[dict[str, torch.Tensor]] = []

        def send_weights(self) -> None:
            self.sent.append(dict(self._checked_iter(self.source, self.source.metadata())))

    sender = Unconnected()
    monkeypatch.setattr(NcclTransfer, "_connect", lambda *_: sender)
    transfer = NcclTransfer(torch.bfloat16)
    async with recorder() as (client, _), transfer.staged(Weights(tiny.model)) as refill:
        async with transfer.staged([("a", torch.ones(2))]) as update:
            await update(client, "run-2")
        await refill(client, "run-1")
    update_sent, refill_sent = sender.sent
    assert update_sent.keys() == {"a"}
    assert refill_sent.keys() == dict(Weights(tiny.model)).keys()
    assert {value.dtype for value in refill_sent.values()} == {torch.bfloat16}


async def test_an_update_is_three_calls_that_end_with_its_version() -> None:
    from envrl.engine.vllm.transfer import _Routes

    async with recorder() as (client, calls):
        routes = _Routes(client, "run-7", asyncio.get_running_loop())
        await asyncio.to_thread(routes.start_weight_update)
        await asyncio.to_thread(routes.update_weights, {"names": ["a"]})
        await asyncio.to_thread(routes.finish_weight_update)
    assert calls == [
        ("/start_weight_update", None),
        ("/update_weights", {"update_info": {"names": ["a"]}}),
        ("/finish_weight_update", {"weight_version": "run-7"}),
    ]
