"""How weights travel from the trainer to its servers: as a file in memory, or over NCCL.

Either way a server hears the same calls: start_weight_update, update_weights, finish_weight_update.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

import torch
from torch import Tensor

from envrl.engine.vllm.client import Client

Named = Iterable[tuple[str, Tensor]]
Send = Callable[[Client, str], Awaitable[None]]
"""Has one server take the staged weights, and call them by a version."""

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class Transfer(Protocol):
    """One way for weights to travel."""

    backend: str
    """vLLM's name for it."""

    @asynccontextmanager
    def staged(self, weights: Named) -> AsyncIterator[Send]:
        """Walks the weights once; inside they can be sent to any number of servers at once."""

    def forget(self, client: Client) -> None:
        """The server has been started anew: nothing connects it with the trainer."""


class FileTransfer:
    """Through a file in memory, for servers on this machine that run as the same user."""

    backend = "file"

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype` is the engine's."""
        self._dtype = dtype

    @asynccontextmanager
    async def staged(self, weights: Named) -> AsyncIterator[Send]:
        """See Transfer."""
        with memory_file() as (file, path):
            await asyncio.to_thread(write_safetensors, file, weights, self._dtype)

            async def send(client: Client, version: str) -> None:
                await client.start_update()
                await client.update({"path": path})
                await client.finish_update(version)

            yield send

    def forget(self, client: Client) -> None:
        """See Transfer. There is no connection."""


class NcclTransfer:
    """vLLM's own NCCL transfer, from this process's GPU to those of each server. Not run on a GPU."""

    backend = "nccl"

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype` is the engine's."""
        self._dtype = dtype
        self._senders: dict[Client, Any] = {}
        self._one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def staged(self, weights: Named) -> AsyncIterator[Send]:
        """See Transfer. Servers take them one after the other, as all of it leaves by this GPU."""
        source = Source([(name, value.to(self._dtype)) for name, value in weights])

        async def send(client: Client, version: str) -> None:
            async with self._one_at_a_time:
                await self._send(client, version, source)

        yield send

    def forget(self, client: Client) -> None:
        """See Transfer."""
        self._senders.pop(client, None)

    async def _send(self, client: Client, version: str, source: Source) -> None:
        routes = _Routes(client, version, asyncio.get_running_loop())
        if client not in self._senders:
            ranks = 1 + await client.world_size()
            self._senders[client] = await asyncio.to_thread(self._connect, routes, source, ranks)
        sender = self._senders[client]
        sender.client, sender.source = routes, source
        await asyncio.to_thread(sender.send_weights)

    def _connect(self, routes: _Routes, source: Source, ranks: int) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        address, port = _endpoint(routes.client.url)
        init_info = NCCLTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=ranks)
        return WeightTransferTrainerFactory.trainer_init(init_info, client=routes, source=source)


class Source:
    """Staged weights, as vLLM's sender asks for them."""

    def __init__(self, weights: list[tuple[str, Tensor]]) -> None:
        self._weights = weights

    def metadata(self) -> list[Any]:
        """Name, type and shape of what an iteration yields."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, value.dtype, tuple(value.shape)) for name, value in self._weights]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self._weights)


class _Routes:
    """The calls of an update as vLLM's sender makes them, from a thread."""

    def __init__(self, client: Client, version: str, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self._version = version
        self._loop = loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Has the workers meet the trainer."""
        self._wait(self.client.init_transfer(init_info))

    def start_weight_update(self) -> None:
        """First of three."""
        self._wait(self.client.start_update())

    def update_weights(self, update_info: Any) -> None:
        """Meanwhile the trainer sends."""
        self._wait(self.client.update(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Last of three."""
        self._wait(self.client.finish_update(weight_version or self._version))

    def _wait(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()


def _endpoint(url: str) -> tuple[str, int]:
    """An address of this machine that the server can reach, and a port that is free there."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 80)) as connection:
        address = connection.getsockname()[0]
    with socket.socket() as probe:
        probe.bind((address, 0))
        return address, probe.getsockname()[1]


@contextmanager
def memory_file() -> Iterator[tuple[IO[bytes], str]]:
    """A file in memory, and the path by which other processes of this user read it.

    It has no name that could outlive this process, however that ends.
    """
    with os.fdopen(os.memfd_create("envrl-weights"), "wb") as file:
        yield file, f"/proc/{os.getpid()}/fd/{file.fileno()}"


def write_safetensors(file: IO[bytes], weights: Named, dtype: torch.dtype) -> None:
    """Writes tensor by tensor: safetensors' own writer copies all of them first, and wants a name."""
    tensors = list(weights)
    header, end = {}, 0
    for name, value in tensors:
        begin, end = end, end + value.numel() * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, value in tensors:
        file.write(value.to("cpu", dtype).flatten().view(torch.uint8).numpy().data)
    file.flush()
