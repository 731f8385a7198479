"""vLLM behind HTTP: one or several servers, that run already or that envrl starts.

An episode's turns go to one server, where its prefix is cached. A request that a server leaves unanswered is
made again, there or at another one. With several ranks the main one starts servers and pushes weights.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import torch
from accelerate import PartialState
from torch import Tensor
from transformers import AutoConfig, PreTrainedTokenizerBase

from envrl.child import ChildServer
from envrl.engine.base import Engine, EngineStats, Generation, Sampling
from envrl.engine.vllm.arguments import engine_arguments
from envrl.engine.vllm.client import PAUSE_S, Client, Completion, Refused, ServerDown
from envrl.engine.vllm.fleet import Fleet
from envrl.engine.vllm.identity import Needs, judged, reached
from envrl.engine.vllm.process import vllm_server
from envrl.engine.vllm.replica import Replica
from envrl.engine.vllm.requests import generation_of
from envrl.engine.vllm.transfer import FileTransfer, NcclTransfer
from envrl.errors import ConfigError, EngineError, StageError
from envrl.launch import from_main, is_main, world_size
from envrl.spec import ServerSpec

MIN_ATTEMPTS = 3
"""At a request, however long it takes a server to come back."""
MAX_PAUSE_S = 5.0
"""Between two attempts."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the main rank has found, or started."""

    urls: Sequence[str]
    max_context: int
    kv_tokens: int | None
    dtype: torch.dtype
    """Of the servers' weights."""
    name: str = field(default_factory=lambda: secrets.token_hex(4))
    """Of this engine, for its weights."""


class ServerEngine(Engine):
    """Asks vLLM servers for tokens, any number of requests at once."""

    def __init__(
        self,
        spec: ServerSpec,
        folder: Path,
        *,
        directory: Path,
        tokenizer: PreTrainedTokenizerBase,
        eos: Iterable[int],
        dtype: str,
        threads: int,
        min_context: int,
        on_gpu: bool,
    ) -> None:
        """`folder` holds the model's config; logs go to `directory`; `eos` are the model's end tokens.

        A running server with no more than `min_context` tokens of context is refused. Raises ConfigError.
        """
        config = AutoConfig.from_pretrained(folder)
        context = config.get_text_config(decoder=True).max_position_embeddings
        self._spec = spec
        self._on_gpu = on_gpu
        self._arguments = engine_arguments(spec, folder, dtype=dtype, max_context=context, on_gpu=on_gpu)
        backend = {"auto": "nccl" if on_gpu else "file"}.get(spec.transfer, spec.transfer)
        self._needs = Needs(config=config, tokenizer=tokenizer, min_context=min_context, backend=backend)
        if backend == "nccl" and find_spec("vllm") is None:
            wrong = "nccl needs the servers' vllm here, too, and it is not installed"
            raise ConfigError(f"vllm_mode.transfer: {wrong}; mend: pip install -e '.[vllm]'")
        self._eos = frozenset(eos)
        self._processes: list[ChildServer] = []
        if spec.launch and is_main():
            self._processes = [
                vllm_server(
                    spec, self._arguments, replica, directory=directory, backend=backend, threads=threads
                )
                for replica in range(spec.replicas)
            ]
        self._fleet: Fleet | None = None
        self._running = 0
        self._idle = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    # --- the contract -----------------------------------------------------------------------

    async def start(self) -> None:
        """See Engine. Raises ConfigError for servers that may not be used, StageError where one is not up."""
        _judge_launch(self._spec, on_gpu=self._on_gpu)
        try:
            found = from_main(await self._find() if is_main() else None)
        except BaseException:
            await self.close()
            raise
        self.max_context = found.max_context
        self.kv_tokens = found.kv_tokens and found.kv_tokens // world_size()
        processes: Sequence[ChildServer | None] = self._processes or [None] * len(found.urls)
        way = NcclTransfer if self._needs.backend == "nccl" else FileTransfer
        self._fleet = Fleet(
            [Replica(Client(url), process) for url, process in zip(found.urls, processes, strict=True)],
            name=found.name,
            transfer=way(found.dtype) if is_main() else None,
            judge=lambda client: judged(client, self._needs),
            retry_timeout_s=self._spec.retry_timeout_s,
            start_timeout_s=self._spec.start_timeout_s if self._spec.launch else 0.0,
        )
        await self._fleet.stats()  # later ones count from here

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """See Engine."""
        if (max_tokens := self.room(ids, sampling, episode=episode)) < 1:
            return self.no_room()
        async with self._admitted():
            completion = await self._ask(ids, replace(sampling, max_tokens=max_tokens), episode)
        ids, logprobs, reason = completion.ids, completion.logprobs, completion.finish_reason
        return generation_of(ids, logprobs, reason, eos=self._eos, version=self.weights_version)

    async def release(self, episode: str) -> None:
        """See Engine. The server forgets by itself what is not used."""
        self._servers.release(episode)

    async def stats(self) -> EngineStats:
        """See Engine. Ranks have the servers together, and an equal part each."""
        total, ranks = await self._servers.stats(), world_size()
        return EngineStats(
            queue_s=total.queue_s / ranks,
            prefill_s=total.prefill_s / ranks,
            decode_s=total.decode_s / ranks,
            prompt_tokens=total.prompt_tokens // ranks,
            cached_tokens=total.cached_tokens // ranks,
            preemptions=total.preemptions // ranks,
        )

    async def sleep(self) -> None:
        """Frees nothing: servers share no GPU with the trainer. Raises StageError where they serve others."""
        await self._servers.confirm()

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See Engine. A server that is down gets them before it is asked again. Raises StageError."""
        self._open.clear()
        try:
            while self._running:
                self._idle.clear()
                await self._idle.wait()
            _meet()  # no rank asks any more
            await self._servers.load(weights)
            _meet()
            self.weights_version = version
        finally:
            self._open.set()

    async def close(self) -> None:
        """See Engine. Ends the servers that it has started."""
        if self._fleet is not None:
            await self._fleet.close()
        await asyncio.gather(*(process.close() for process in self._processes))

    # --- requests ---------------------------------------------------------------------------

    @property
    def _servers(self) -> Fleet:
        assert self._fleet is not None, "start comes first"
        return self._fleet

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Counts a request; while weights change it waits, so that one version makes all of it."""
        while not self._open.is_set():
            await self._open.wait()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _ask(self, ids: Sequence[int], sampling: Sampling, episode: str) -> Completion:
        """Asks until a server answers, always with the same seed."""
        attempts, began = 0, 0.0
        while True:
            replica = await self._servers.server_of(episode)
            try:
                completion = await replica.client.generate(ids, sampling, self._eos | sampling.stop_ids)
            except Refused as error:
                raise EngineError(str(error)) from error
            except ServerDown as error:
                attempts, began = attempts + 1, began or monotonic()
                waited_s = monotonic() - began
                if attempts >= MIN_ATTEMPTS and waited_s > self._spec.retry_timeout_s:
                    asked = f"asked {attempts} times in {waited_s:.0f} s"
                    raise EngineError(f"{error} ({asked}); mend: raise vllm_mode.retry_timeout_s") from error
                self._servers.lost(replica, error)
                await asyncio.sleep(min(attempts * PAUSE_S, MAX_PAUSE_S))
            else:
                replica.worked()
                return completion

    # --- the beginning, on the main rank ----------------------------------------------------

    async def _find(self) -> Found:
        urls = await asyncio.gather(*(process.url() for process in self._processes)) or self._spec.url
        clients = [Client(url) for url in urls]
        try:
            if self._processes:
                context, dtypes = self._arguments["max_model_len"], [self._arguments["dtype"]]
            else:
                served = [
                    await reached(client, self._needs, self._spec.retry_timeout_s) for client in clients
                ]
                context, dtypes = min(each.max_context for each in served), [each.dtype for each in served]
            kv_tokens = [await client.kv_tokens() for client in clients]
        except (ServerDown, Refused) as error:
            raise StageError(f"vllm_mode=server: {error}") from error
        finally:
            await asyncio.gather(*(client.drop() for client in clients))
        return Found(
            urls=urls,
            max_context=context,
            kv_tokens=None if None in kv_tokens else sum(filter(None, kv_tokens)),
            dtype=max((getattr(torch, dtype) for dtype in dtypes), key=lambda dtype: dtype.itemsize),
        )


def _judge_launch(spec: ServerSpec, *, on_gpu: bool) -> None:
    """Raises ConfigError where servers would share a GPU, or ranks on other machines could not reach them."""
    if spec.launch and on_gpu and spec.replicas > 1 and spec.gpus is None:
        wrong = f"replicas={spec.replicas} would all take the same GPUs (got null)"
        raise ConfigError(f"vllm_mode.gpus: {wrong}; mend: vllm_mode.gpus=[1,2,...]")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
    if spec.launch and here != world_size():
        ranks = f"{world_size()} ranks, {here} of them on this machine"
        mend = "start servers that all can reach, and vllm_mode.url=[http://host:port]"
        raise ConfigError(f"vllm_mode.launch: serves this machine alone (got {ranks}); mend: {mend}")


def _meet() -> None:
    """Waits for all ranks."""
    if world_size() > 1:
        PartialState().wait_for_everyone()
