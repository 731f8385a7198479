"""The servers of one engine: whom to ask, and how those that are lost come back."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from envrl.engine.base import EngineStats
from envrl.engine.vllm.client import PAUSE_S, Client, ServerDown
from envrl.engine.vllm.replica import Replica
from envrl.engine.vllm.transfer import Named, Send, Transfer
from envrl.errors import EngineError, StageError

log = logging.getLogger(__name__)

_MARK = re.compile(r"[0-9a-f]{8}-\d+")
"""What an engine of ours calls its weights."""
HEARTBEAT_S = 5.0
"""Between two looks at a server; shorter than any restart, in which it loses the weights."""


class Fleet:
    """Routes episodes, and pushes weights: a server is asked only while it has the newest ones.

    Needs a running event loop. On ranks other than the main one `transfer` is None, and they wait until that
    one has brought a server back.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        name: str,
        transfer: Transfer | None,
        judge: Callable[[Client], Awaitable[object]],
        retry_timeout_s: float,
        start_timeout_s: float = 0.0,
    ) -> None:
        """`name` tells its weights from those of others; `judge` raises where a server may not be used.

        A server that has not answered for `retry_timeout_s` is lost; an episode waits as long for one that
        is up, and for `start_timeout_s` more.
        """
        self._replicas = replicas
        self._name = name
        self._transfer = transfer
        self._judge = judge
        self._retry_timeout_s = retry_timeout_s
        self._patience_s = retry_timeout_s + start_timeout_s
        self._weights: Named = ()
        self._loads = 0
        self._loading = False
        self._homes: dict[str, Replica] = {}
        self._watches = [asyncio.create_task(self._watch(replica)) for replica in replicas]

    async def server_of(self, episode: str) -> Replica:
        """Where its turns went before, else where the fewest episodes are.

        Raises EngineError where no server is up within our patience, StageError where one is lost for good.
        """
        await self._one_is_up()
        home = self._homes.get(episode)
        if home is None or home.recovery is not None:
            self.release(episode)
            up = [replica for replica in self._replicas if replica.recovery is None]
            home = self._homes[episode] = min(up, key=lambda replica: replica.episodes)
            home.episodes += 1
        return home

    def release(self, episode: str) -> None:
        """Forgets where its turns went."""
        if (home := self._homes.pop(episode, None)) is not None:
            home.episodes -= 1

    def lost(self, replica: Replica, error: Exception | str) -> None:
        """Nobody asks it until it is well and has the newest weights."""
        if replica.recovery is None:
            log.warning("%s; what it leaves unanswered is asked again", error)
            replica.recovery = asyncio.create_task(self._recover(replica))

    async def confirm(self) -> None:
        """Raises StageError where a server has another run's weights: what it sampled is worth nothing."""
        up = [replica for replica in self._replicas if self._loads and replica.recovery is None]
        for replica in up:
            try:
                held = await replica.version(self._retry_timeout_s)
            except ServerDown as error:
                self.lost(replica, error)
            else:
                self._refuse_strangers(replica, held)

    async def load(self, weights: Named) -> None:
        """Pushes weights to every server that is up; the others get them when they are back.

        They are kept, and walked again for a server that comes back. Raises StageError.
        """
        self._weights, self._loads, self._loading = weights, self._loads + 1, True
        try:
            if self._transfer is None:
                await asyncio.to_thread(deque, weights, 0)  # what is gathered, all ranks gather
                return
            async with self._transfer.staged(weights) as send:
                loads = [self._load(r, send, self._version) for r in self._replicas if r.recovery is None]
                for outcome in await asyncio.gather(*loads, return_exceptions=True):
                    if outcome is not None:
                        raise outcome
        finally:
            self._loading = False

    async def stats(self) -> EngineStats:
        """Totals of all servers since the first call."""
        each = await asyncio.gather(*(replica.stats() for replica in self._replicas))
        return sum(each, EngineStats())

    async def close(self) -> None:
        """Ends all connections. The servers stay."""
        tasks = [*self._watches, *(r.recovery for r in self._replicas if r.recovery is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.client.drop() for replica in self._replicas))

    @property
    def _version(self) -> str:
        """What servers call the newest weights."""
        return f"{self._name}-{self._loads}"

    async def _one_is_up(self) -> None:
        deadline = monotonic() + self._patience_s
        while True:
            recoveries = [r.recovery for r in self._replicas if r.recovery is not None]
            for recovery in recoveries:
                if recovery.done():
                    recovery.result()  # it failed for good
            if len(recoveries) < len(self._replicas):
                return
            patience_s = max(deadline - monotonic(), 0)
            done, _ = await asyncio.wait(recoveries, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise EngineError(self._nobody())

    def _nobody(self) -> str:
        urls = ", ".join(replica.client.url for replica in self._replicas)
        mend = "see that one is, or raise vllm_mode.retry_timeout_s"
        return f"no vLLM server is up at {urls} (waited {self._patience_s:g} s); mend: {mend}"

    def _refuse_strangers(self, replica: Replica, held: str) -> None:
        if _MARK.fullmatch(held) and not held.startswith(f"{self._name}-"):
            mend = "give every run servers of its own"
            raise StageError(f"vllm_mode=server: {replica.client.url} serves another run, too; mend: {mend}")

    async def _recover(self, replica: Replica) -> None:
        while True:
            try:
                await replica.revive()
                if (held := await replica.version()) == self._version:
                    break
                self._refuse_strangers(replica, held)
                if self._transfer is not None:
                    await self._refill(replica, self._transfer)
                    continue  # newer ones may have come meanwhile
            except ServerDown as error:
                log.info("%s", error)
            await asyncio.sleep(PAUSE_S)
        replica.recovery = None
        log.info("%s is up again", replica.client.url)

    async def _refill(self, replica: Replica, transfer: Transfer) -> None:
        """The newest weights, for a server that has started anew."""
        if replica.process is None:
            await self._judge(replica.client)
        transfer.forget(replica.client)
        version = self._version
        async with transfer.staged(self._weights) as send:
            await replica.load(send, version)

    async def _load(self, replica: Replica, send: Send, version: str) -> None:
        try:
            await replica.load(send, version)
        except ServerDown as error:
            self.lost(replica, error)

    async def _watch(self, replica: Replica) -> None:
        """Finds a server that hangs, or that has started anew between two requests."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if not self._loads or replica.recovery is not None:
                continue
            if self._loading:
                if not await replica.client.is_well(self._retry_timeout_s):
                    self.lost(replica, f"{replica.client.url}: hangs while it takes weights")
                    await replica.client.drop()  # so does the push that waits for it
                continue
            expected = self._version
            try:
                held = await replica.version(self._retry_timeout_s)
            except ServerDown as error:
                self.lost(replica, error)
                await replica.client.drop()  # whoever waits there asks again
                continue
            if held != expected == self._version and not self._loading:
                self.lost(replica, f"{replica.client.url}: has lost the weights")
                await replica.client.drop()
