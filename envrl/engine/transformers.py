"""Continuous batching over a Hugging Face causal LM, on the trainer's own module.

Everything happens in the event loop's thread. Requests wait in a queue; a task of the engine seats them
and runs one forward pass after the other over all that are seated, and lets every coroutine that is ready
run in between. So a pass starts only when nobody has anything left to ask, and the same requests
meet the same batches in every run.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from itertools import compress
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from envrl.engine.base import Engine, EngineStats, Generation, GenerationStop, Sampling
from envrl.engine.forward import Forward
from envrl.engine.kv import KVCache, Pass, spare_bytes
from envrl.engine.request import Request
from envrl.engine.sample import sample
from envrl.engine.slots import Slot, Slots
from envrl.errors import EngineError, EnvrlError
from envrl.model.weights import Weights

_QUIET = 3
"""Passes of the event loop without a new request after which no coroutine is taken to be ready."""
_CHUNK = 512
"""Most tokens of one row that a pass feeds; longer prompts take several passes."""
_PADDED = 4096
"""Most rows x longest row among those that feed several tokens in a pass."""


class TransformersEngine(Engine):
    """Samples from `model` and shares its weights; at most `max_batch` requests run at once.

    Every pass runs under a fresh `autocast()`, the trainer's. Keys and values take `kv_cache_gib`, by
    default half of the GPU memory that is free when a rollout begins: where they do not fit, requests
    queue, and episodes that wait for their environment are fed again later.

    While a request is outstanding the module belongs to the engine; before the last one is answered it is
    given back in the mode that it was found in. Raises ConfigError for a model whose layers are not
    all plain causal attention.
    """

    passes: int
    """Forward passes so far."""
    fed: int
    """Tokens that they fed: prompts, observations and sampled ones, each at most once per cache."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch: int | None = None,
        kv_cache_gib: float | None = None,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        self.model = model
        self._forward = Forward(model, autocast)
        self.max_context = config.max_position_embeddings
        self.passes = self.fed = 0
        self._max_batch = max_batch or 1 << 30
        eos = model.generation_config.eos_token_id if model.generation_config else config.eos_token_id
        self._eos = frozenset([eos] if isinstance(eos, int) else eos or [])
        self._cache = KVCache(
            self._forward.sizes,
            lambda: spare_bytes(model.device) if kv_cache_gib is None else int(kv_cache_gib * 2**30),
        )
        self._slots = Slots()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._arrivals = 0
        self._held = 0
        self._stats = EngineStats()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def kv_bytes(self) -> int:
        """Memory that keys and values take now."""
        return self._cache.nbytes

    @property
    def kv_tokens(self) -> int | None:  # type: ignore[override]  # depends on what others leave of a GPU
        """See Engine. None before `start`, which shows what a token takes."""
        return self._cache.positions

    # --- the contract -----------------------------------------------------------------------

    async def start(self) -> None:
        """See Engine. Raises ConfigError for a model that it cannot run."""
        try:
            self._forward.borrow()
        finally:
            self._forward.give_back()

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """See Engine. Two requests of one episode run one after the other."""
        if self._closed:
            raise EngineError("the engine is closed")
        if (room := self.room(ids, sampling, episode=episode)) < 1:
            return self.no_room()
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        ends = self._eos | sampling.stop_ids
        request = Request(episode, list(ids), len(ids) + room, ends, sampling, future, Random(sampling.seed))
        self._waiting.append(request)
        self._arrivals += 1
        self._kick()
        try:
            return await future
        except asyncio.CancelledError:
            self._forget(request)
            raise

    async def release(self, episode: str) -> None:
        """See Engine. Requests of the episode that still run end as `abort`."""
        for request in [*self._running, *self._waiting]:
            if request.episode == episode:
                self._finish(request, GenerationStop.ABORT)
        self._slots.free(episode)
        if not self._slots.places:
            self._cache.rest()

    async def stats(self) -> EngineStats:
        """See Engine. An episode that lost its memory between two turns counts as preempted, too."""
        return self._stats

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See Engine. The module's own weights are in place already."""
        async with self._drained():
            if not (isinstance(weights, Weights) and weights.model is self.model):
                self._copy(weights)
            self._slots = Slots()
            self._cache.rest()
            self.weights_version = version

    @torch.no_grad()
    def _copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        own = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
        for name, tensor in weights:
            if name not in own:
                raise EngineError(f"load_weights: the model has no weight {name!r}")
            if own[name].data_ptr() != tensor.data_ptr() or own[name].shape != tensor.shape:
                own[name].copy_(tensor)

    async def sleep(self) -> None:
        """See Engine. Waits for running requests and frees every cache."""
        async with self._drained():
            self._slots = Slots()
            self._cache.rest()

    async def close(self) -> None:
        """See Engine. What still runs ends as `abort`."""
        self._closed = True
        for request in [*self._running, *self._waiting]:
            self._finish(request, GenerationStop.ABORT)
        self._slots = Slots()
        self._cache.clear()
        self._forward.give_back()

    # --- the loop ---------------------------------------------------------------------------

    def _kick(self) -> None:
        """Sees to it that the loop runs; it ends by itself when there is nothing to do."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        await self._settle()
        while self._admit():
            self._step()
            await self._settle()

    async def _settle(self) -> None:
        """Lets every coroutine that is ready run until none of them asks for more."""
        quiet = 0
        while quiet < _QUIET:
            seen = self._arrivals
            await asyncio.sleep(0)
            quiet = quiet + 1 if seen == self._arrivals else 0

    def _admit(self) -> bool:
        """Seats whoever can be seated; False when nothing runs."""
        if not self._running and not self._calls():
            return False
        self._forward.borrow()
        self._make_room()
        late = []
        while self._calls() and len(self._running) < self._max_batch and self._fits(self._waiting[0]):
            request = self._waiting.popleft()
            slot = self._slots.seat(request.episode, request.ids)
            if slot is None:
                late.append(request)
            else:
                request.seat(slot)
                self._running.append(request)
        self._waiting.extendleft(reversed(late))
        return bool(self._running)

    def _calls(self) -> bool:
        """Whether the first in the queue may be seated; what has begun ends before anything else happens."""
        return bool(self._waiting) and (not self._held or bool(self._waiting[0].logprobs))

    def _fits(self, request: Request) -> bool:
        """Whether memory is left for it; episodes that wait for their environment give way."""
        room = self._cache.room(_longest([request, *self._running]))
        new = request.episode not in self._slots
        return len(self._running) < room and self._evict(room - new, but=request.episode)

    def _make_room(self) -> None:
        """Where rows outgrow the memory, those seated last queue again, in front; what they sampled stays."""
        while len(self._running) > (room := self._cache.room(_longest(self._running))):
            request = self._running.pop()
            self._waiting.appendleft(request)
            self._slots.free(request.episode)
            self._stats += EngineStats(preemptions=1)
        self._evict(room)

    def _evict(self, room: int, *, but: str = "") -> bool:
        held = len(self._slots)
        enough = self._slots.evict(room, but=but)
        if evicted := held - len(self._slots):
            self._stats += EngineStats(preemptions=evicted)
        return enough

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A pass that raised fails everyone who waits; the engine starts afresh with the next request."""
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        for request in [*self._running, *self._waiting]:
            self._forget(request)
            if error is None:
                request.future.cancel()
            elif not request.future.done():
                request.future.set_exception(_failure(error))
        self._slots = Slots()
        self._cache.clear()
        self._forward.give_back()

    @asynccontextmanager
    async def _drained(self) -> AsyncIterator[None]:
        """Nothing runs inside; new requests queue meanwhile."""
        self._held += 1
        try:
            while self._task and not self._task.done() and (self._running or self._calls()):
                await asyncio.wait([self._task])
            self._forward.give_back()  # those who queue by now are seated later
            yield
        finally:
            self._held -= 1
            if self._waiting:
                self._kick()

    # --- one pass ---------------------------------------------------------------------------

    @torch.inference_mode()
    def _step(self) -> None:
        """One forward pass, and a token for every row that has fed all it had."""
        singles, several = self._choose()
        self._place(singles, several)
        rows = singles + several
        tokens: list[int] = []
        cached, counts = [], []
        for row in rows:
            fed = row.slot.cached
            count = min(len(row.ids) - fed, _CHUNK)
            tokens += row.ids[fed : fed + count]
            cached.append(fed)
            counts.append(count)
            row.slot.cached = fed + count
        kv_pass = Pass(
            self._cache, tokens, cached=cached, counts=counts, singles=len(singles), device=self.model.device
        )
        self.passes += 1
        self.fed += len(tokens)
        ready = [row.slot.cached == len(row.ids) for row in rows]
        logits_RV = self._forward(kv_pass, list(compress(kv_pass.last, ready)))
        if any(ready):
            self._extend(list(compress(rows, ready)), logits_RV)

    def _choose(self) -> tuple[list[Request], list[Request]]:
        """Who takes part: all that feed one token, and as many that feed several as fit."""
        singles: list[Request] = []
        several: list[Request] = []
        widest = 0
        for request in self._running:
            todo = len(request.ids) - request.slot.cached
            width = max(widest, min(todo, _CHUNK))
            if todo == 1:
                singles.append(request)
            elif not several or width * (len(several) + 1) <= _PADDED:
                several.append(request)
                widest = width
        return singles, several

    def _place(self, singles: list[Request], several: list[Request]) -> None:
        """Moves their slots to the front of the cache and sorts them as they lie."""
        longest = max(min(len(r.ids), r.slot.cached + _CHUNK) for r in singles + several)
        if len(self._slots.places) > self._cache.room(longest):
            self._transfer(self._slots.pack())
        self._cache.reserve(len(self._slots.places), longest)
        self._transfer([(donor.place, slot) for slot, donor in self._slots.copies.items()])
        self._slots.copies.clear()
        self._transfer(self._slots.arrange([r.slot for r in singles], [r.slot for r in several]))
        for requests in (singles, several):
            requests.sort(key=lambda request: request.slot.place)

    def _transfer(self, moves: list[tuple[int, Slot]]) -> None:
        if moves:
            length = max(slot.cached for _, slot in moves)
            self._cache.move([old for old, _ in moves], [slot.place for _, slot in moves], length)

    def _extend(self, requests: list[Request], logits_RV: Tensor) -> None:
        """Samples a token for each request and answers those that end with it."""
        settings = [request.sampling for request in requests]
        tokens, logprobs = sample(logits_RV, settings, [request.random.random() for request in requests])
        now = time.perf_counter()
        if not math.isfinite(sum(logprobs)):
            raise EngineError("the model's logits are not finite")
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.spoken = request.spoken or now
            if token in request.ends:
                self._finish(request, GenerationStop.EOS if token in self._eos else GenerationStop.STOP)
            elif len(request.ids) >= request.limit:
                self._finish(request, GenerationStop.LENGTH)

    # --- beginnings and ends ----------------------------------------------------------------

    def _finish(self, request: Request, stop: GenerationStop) -> None:
        sampled = request.ids[len(request.ids) - len(request.logprobs) :]
        self._stats += request.spent()
        self._forget(request)
        if not request.future.done():
            generation = Generation(sampled, request.logprobs, stop, self.weights_version)
            request.future.set_result(generation)

    def _forget(self, request: Request) -> None:
        """Takes a request out, wherever it is; what it has cached stays with its episode."""
        if request in self._running:
            self._running.remove(request)
            request.slot.busy = False
        elif request in self._waiting:
            self._waiting.remove(request)
        if not self._running and not self._waiting:
            self._forward.give_back()


def _longest(requests: Iterable[Request]) -> int:
    return max((len(request.ids) for request in requests), default=0)


def _failure(error: BaseException) -> Exception:
    """What a waiter hears of a pass that raised: one exception of its own each."""
    if isinstance(error, EnvrlError):
        return type(error)(*error.args)
    lines = str(error).strip().splitlines() or [""]
    # an error out of a trace brings the trace's own stack; the error is its last line
    reason = lines[-1] if "TorchScript" in lines[0] else lines[0]
    failure = EngineError(f"{type(error).__name__}: {reason}")
    failure.__cause__ = error
    return failure
