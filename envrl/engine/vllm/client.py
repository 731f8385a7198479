"""One vLLM server over HTTP.

Tokens go through /inference/v1/generate: it takes vLLM's SamplingParams as they are and decodes no text, so
that it costs the server's own process about half the CPU time of /v1/completions.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from envrl.engine.base import EngineStats, Sampling
from envrl.engine.vllm.requests import sampling_parameters

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
"""For what a server says of itself; the first time it looks at its machine."""
KEEPALIVE_S = 3.0
"""Shorter than the server's 5, so that it is never the server that ends an idle connection."""
PAUSE_S = 0.5
"""Between two attempts to reach a server that is down."""
BUSY = (408, 429)
"""Client errors that another attempt may mend."""


class ServerDown(Exception):
    """It did not answer; the same request may be made again."""


class ServerFailed(ServerDown):
    """It answered that something went wrong on its side."""


class Refused(Exception):
    """It answered that the request is wrong."""


@dataclass(frozen=True)
class Completion:
    """What the server sampled: the stop id included; natural logs; vLLM's own word for why it ended."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: str


class Client:
    """Any number of requests at once; cancelling one closes its connection, and the server aborts it.

    Every call raises ServerDown where the server does not answer or is unwell, Refused for other errors.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def generate(self, ids: Sequence[int], sampling: Sampling, ends: Collection[int]) -> Completion:
        """One completion, which any of `ends` ends. A greedy one has no log-probabilities."""
        greedy = sampling.temperature == 0
        parameters = sampling_parameters(sampling, max_tokens=sampling.max_tokens, ends=ends)
        body = {"token_ids": list(ids), "sampling_params": parameters}
        (choice,) = (await self._json("POST", "/inference/v1/generate", body))["choices"]
        if (reason := choice["finish_reason"]) not in ("stop", "length"):
            raise ServerFailed(f"{self.url}: gave up a request ({reason})")
        logprobs = [] if greedy else [token["logprob"] for token in choice["logprobs"]["content"]]
        return Completion(choice["token_ids"], logprobs, reason)

    # --- what it is -------------------------------------------------------------------------

    async def is_well(self, timeout_s: float | None = None) -> bool:
        """Whether it says so."""
        try:
            await self.ask("GET", "/health", timeout_s=timeout_s)
        except (ServerDown, Refused):
            return False
        return True

    async def info(self) -> dict[str, Any]:
        """vLLM's configuration, which it tells in its development mode alone."""
        reply = await self._json("GET", "/server_info?config_format=json", timeout_s=ANSWER_TIMEOUT_S)
        return dict(reply["vllm_config"])

    async def describe(self, *sizes: str) -> dict[str, Any]:
        """The model's architecture and these values of its config; needs our worker extension."""
        reply = await self._json(
            "POST", "/collective_rpc", {"method": "describe", "args": sizes}, timeout_s=ANSWER_TIMEOUT_S
        )
        return dict(reply["results"][0])

    async def tokenize(self, text: str) -> list[int] | None:
        """The ids of a text; None where the server has no tokenizer."""
        try:
            body = {"prompt": text, "add_special_tokens": False}
            reply = await self._json("POST", "/tokenize", body, timeout_s=ANSWER_TIMEOUT_S)
        except (Refused, ServerFailed):
            return None
        return list(reply["tokens"])

    async def stats(self) -> EngineStats:
        """Totals since the server started."""
        sums: defaultdict[str, float] = defaultdict(float)
        for line in (await self._metrics()).splitlines():
            if line.startswith("vllm:"):
                name, _, labelled = line.replace("{", " ", 1).partition(" ")
                sums[name] += float(labelled.rpartition(" ")[2])
        return EngineStats(
            queue_s=sums["vllm:request_queue_time_seconds_sum"],
            prefill_s=sums["vllm:request_prefill_time_seconds_sum"],
            decode_s=sums["vllm:request_decode_time_seconds_sum"],
            prompt_tokens=int(sums["vllm:prompt_tokens_total"]),
            cached_tokens=int(sums["vllm:prompt_tokens_cached_total"]),
            preemptions=int(sums["vllm:num_preemptions_total"]),
        )

    async def kv_tokens(self) -> int | None:
        """How many tokens' keys and values fit at once, over its data-parallel engines; None if unknown."""
        return sum(map(int, re.findall(r'kv_cache_size_tokens="(\d+)"', await self._metrics()))) or None

    async def _metrics(self) -> str:
        return (await self.ask("GET", "/metrics", timeout_s=ANSWER_TIMEOUT_S)).decode()

    # --- weights ----------------------------------------------------------------------------

    async def version(self, timeout_s: float | None = None) -> str:
        """What the last weight update called its weights."""
        return str((await self._json("GET", "/weight_info", timeout_s=timeout_s))["weight_version"])

    async def world_size(self) -> int:
        """Worker processes that take weights."""
        return int((await self._json("GET", "/get_world_size"))["world_size"])

    async def pause(self) -> None:
        """Waits for running requests; new ones queue at the server."""
        await self.ask("POST", "/pause?mode=wait")

    async def resume(self) -> None:
        """Undoes `pause`."""
        await self.ask("POST", "/resume")

    async def init_transfer(self, init_info: dict[str, Any]) -> None:
        """Connects its workers to the trainer, where the backend has a connection."""
        await self.ask("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    async def start_update(self) -> None:
        """First of the three calls of an update; one that another trainer left half done is closed before."""
        try:
            await self.ask("POST", "/start_weight_update")
        except ServerFailed as error:
            if "already active" not in str(error):
                raise
            await self.drop()  # vLLM ends a connection after such an answer
            await self.finish_update("abandoned")
            await self.ask("POST", "/start_weight_update")

    async def update(self, update_info: Any) -> None:
        """Has the workers receive weights, as the backend describes them."""
        await self.ask("POST", "/update_weights", {"update_info": update_info})

    async def finish_update(self, version: str) -> None:
        """Last of the three."""
        await self.ask("POST", "/finish_weight_update", {"weight_version": version})

    async def reset_prefix_cache(self) -> None:
        """Forgets all keys and values. Raises ServerFailed where some were in use."""
        if not (await self._json("POST", "/reset_prefix_cache"))["success"]:
            raise ServerFailed(f"{self.url}: the prefix cache was in use while the weights changed")

    # --- the connection ---------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> bytes:
        """One request; without a timeout it may take as long as it takes."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector)
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.request(method, self.url + path, json=body, timeout=timeout) as reply:
                content = await reply.read()
        except (aiohttp.ClientError, OSError) as error:
            raise ServerDown(f"{self.url}: {str(error) or type(error).__name__}") from error
        if reply.status >= 500 or reply.status in BUSY:
            raise ServerFailed(f"{self.url}: {_message(reply.status, content)}")
        if reply.status >= 400:
            raise Refused(f"{self.url}: {_message(reply.status, content)}")
        return content

    async def drop(self) -> None:
        """Ends all connections: whoever waits on one hears ServerDown."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _json(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        content = await self.ask(method, path, body, **options)
        try:
            return json.loads(content)
        except ValueError as error:
            raise Refused(f"{self.url}{path}: {_message(200, content)}") from error


def _message(status: int, content: bytes) -> str:
    """What the server says of an error, or how it began."""
    text = content.decode("utf-8", errors="replace")
    if text.lstrip().startswith("<"):
        return f"status {status}: a web page"
    with suppress(ValueError, LookupError, TypeError):
        text = json.loads(text)["error"]["message"]
    return f"status {status}: {' '.join(str(text).split())[:500]}"
