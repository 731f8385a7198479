"""One vLLM server as the engine sees it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from envrl.child import ChildServer
from envrl.engine.base import EngineStats
from envrl.engine.vllm.client import Client, Refused, ServerDown, ServerFailed
from envrl.engine.vllm.transfer import Send
from envrl.errors import StageError

HEALTH_TIMEOUT_S = 5.0


class Replica:
    """A server, and its process where this rank has started it."""

    def __init__(self, client: Client, process: ChildServer | None = None) -> None:
        self.client = client
        self.process = process
        self.episodes = 0
        """Whose turns go here."""
        self.recovery: asyncio.Task[None] | None = None
        """Runs while nobody may ask it; where it failed for good, it stays."""
        self._one_at_a_time = asyncio.Lock()
        self._stats = EngineStats()
        self._last: EngineStats | None = None

    async def revive(self) -> None:
        """Starts it again where it is ours and has died. Raises ServerDown, or StageError for good."""
        if self.process is not None:
            self.client.url = await self.process.url()
        elif not await self.client.is_well(HEALTH_TIMEOUT_S):
            raise ServerDown(f"{self.client.url}: does not answer")

    def worked(self) -> None:
        """It has answered a request."""
        if self.process is not None:
            self.process.worked()

    async def version(self, timeout_s: float | None = None) -> str:
        """Of the weights that it has; empty where it has no word for that. Raises ServerDown."""
        try:
            return await self.client.version(timeout_s)
        except Refused:
            return ""

    async def load(self, send: Send, version: str) -> None:
        """Drains it, has it take weights, forgets its cache. Raises ServerDown, or StageError for good."""
        async with self._one_at_a_time:
            try:
                await self.client.pause()
                try:
                    await send(self.client, version)
                    await self.client.reset_prefix_cache()
                except (ServerDown, Refused):
                    await self.client.drop()  # vLLM ends a connection after such an answer
                    with suppress(ServerDown, Refused):  # what went wrong is what counts
                        await self.client.resume()
                    raise
                await self.client.resume()
            except (ServerFailed, Refused) as error:
                if await self.client.is_well(HEALTH_TIMEOUT_S):  # so it is the weights that it did not like
                    raise StageError(f"vllm_mode=server: the weights were not taken by {error}") from error
                raise ServerDown(str(error)) from error

    async def stats(self) -> EngineStats:
        """Totals since the first call, over all its lives; as they were, while it does not answer."""
        with suppress(ServerDown):
            now = await self.client.stats()
            last = now if self._last is None else self._last
            restarted = now.prompt_tokens < last.prompt_tokens
            self._stats += now if restarted else now - last
            self._last = now
        return self._stats
