"""vLLM in the trainer's process: one thread steps the engine, every episode's coroutine awaits its tokens.

The thread takes commands between two steps, in the order in which they came. One that needs the engine idle
(new weights, sleep) waits until nothing runs, and what came after it waits with it; aborts overtake all.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from envrl.engine.base import Engine, EngineStats, Generation, Sampling
from envrl.engine.vllm.arguments import engine_arguments
from envrl.engine.vllm.instance import Instance, Place, judge
from envrl.engine.vllm.requests import generation_of, sampling_parameters
from envrl.engine.vllm.totals import Totals
from envrl.errors import ConfigError, EngineError
from envrl.spec import ColocateSpec

T = TypeVar("T")
_SWITCH_S = 5e-4
"""How long a thread may keep another waiting: Python's usual 5 ms are a whole step of a small model."""
MAX_DEATHS = 3
"""In a row, without a generation that ended well between them."""


@dataclass(eq=False)
class _Request:
    ids: list[int]
    sampling: Sampling
    max_tokens: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Generation]
    id: str = field(default="")
    """vLLM's name for it, once it has one."""


@dataclass
class _Command:
    run: Callable[[], None]
    needs_idle: bool = False


class ColocateEngine(Engine):
    """Steps one vLLM engine. The trainer's weights are pushed into it within the process.

    An engine that dies fails what ran on it; the next one is built at once and takes the weights anew.
    """

    def __init__(
        self,
        spec: ColocateSpec,
        folder: Path,
        *,
        dtype: str,
        max_context: int,
        eos: Iterable[int],
        threads: int,
    ) -> None:
        """`folder` holds the model's config; `max_context` is the model's; `eos` are its end tokens.

        Raises ConfigError for arguments that vLLM does not have.
        """
        on_gpu = torch.cuda.is_available()
        if spec.sleep and not on_gpu:
            raise ConfigError(
                "vllm_mode.sleep: frees a GPU's memory, and there is none; mend: vllm_mode.sleep=false"
            )
        self._spec = spec
        self._arguments = {
            **engine_arguments(spec, folder, dtype=dtype, max_context=max_context, on_gpu=on_gpu),
            "skip_tokenizer_init": True,
            "disable_log_stats": False,  # its statistics cost nothing that can be measured
            "enable_sleep_mode": spec.sleep,
        }
        judge(self._arguments)
        self.max_context = self._arguments["max_model_len"]
        self._eos = frozenset(eos)
        self._totals = Totals()
        device = torch.cuda.current_device() if on_gpu else None
        self._place = Place(threads=threads, device=device, in_launch=torch.distributed.is_initialized())
        self._instance: Instance | None = None
        self._weights: Iterable[tuple[str, Tensor]] = ()
        self._requests: dict[str, _Request] = {}
        self._commands: deque[_Command] = deque()
        self._aborted: deque[_Request] = deque()
        self._wakeup = threading.Condition()
        self._closing = False
        self._deaths = 0
        self._fatal: Exception | None = None
        self._names = map(str, count())
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)

    # --- the contract, on the event loop ----------------------------------------------------

    async def start(self) -> None:
        """See Engine. Raises ConfigError with vLLM's reason where it cannot be built."""
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        try:
            await self._call(self._build)
        except Exception as error:
            await self.close()
            reason, mend = _reason(error), "vllm_mode.*"
            if "KV cache" in reason:
                mend = "vllm_mode.kv_cache_gib, gpu_memory_utilization or max_model_len"
            raise ConfigError(f"vllm_mode=colocate: {reason}; mend: {mend}, or vllm_mode=none") from error

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """See Engine. The prefix cache finds an episode's earlier turns by their tokens."""
        if (max_tokens := self.room(ids, sampling, episode=episode)) < 1:
            return self.no_room()
        loop = asyncio.get_running_loop()
        request = _Request(list(ids), sampling, max_tokens, loop, loop.create_future())
        self._post(lambda: self._admit(request))
        try:
            return await request.future
        except asyncio.CancelledError:
            with self._wakeup:
                self._aborted.append(request)
                self._wakeup.notify()
            raise

    async def stats(self) -> EngineStats:
        """See Engine."""
        return self._totals.stats()

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See Engine. Where `sleep` is set, it comes between `wake` and the first request."""
        self._weights = weights
        await self._call(self._push, needs_idle=True)
        self.weights_version = version

    async def sleep(self) -> None:
        """See Engine. Level 1: weights move to the CPU's memory, keys and values go. Not run on a GPU."""
        if self._spec.sleep:
            await self._call(lambda: self._running.engine.sleep(1), needs_idle=True)

    async def wake(self) -> None:
        """See Engine. Only the weights get their memory back; the rest follows once they are loaded."""
        if self._spec.sleep:
            torch.cuda.empty_cache()  # what the update has left over
            await self._call(lambda: self._running.engine.wake_up(["weights"]))

    async def close(self) -> None:
        """See Engine. What still runs fails."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
            sys.setswitchinterval(self._switch_s)

    async def _call(self, function: Callable[[], T], *, needs_idle: bool = False) -> T:
        """Runs it on the engine's thread, between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked is gone
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._post(run, needs_idle=needs_idle)
        return await asyncio.wrap_future(future)

    def _post(self, run: Callable[[], None], *, needs_idle: bool = False) -> None:
        with self._wakeup:
            self._commands.append(_Command(run, needs_idle))
            self._wakeup.notify()

    # --- the engine's thread ----------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            self._take_commands()
            if self._busy():
                try:
                    outputs = self._running.engine.step()
                except Exception as error:
                    self._die(error)
                else:
                    self._answer([output for output in outputs if output.finished])
        self._fail(EngineError("the engine is closed"))
        self._shut_down()

    def _wait(self) -> bool:
        """Until there is something to do; False when it is time to end."""
        with self._wakeup:
            self._wakeup.wait_for(lambda: self._closing or self._commands or self._aborted or self._busy())
            return not self._closing

    def _busy(self) -> bool:
        return bool(self._requests)

    def _take_commands(self) -> None:
        while self._aborted:
            self._abort(self._aborted.popleft())
        while self._commands and not (self._commands[0].needs_idle and self._requests):
            self._commands.popleft().run()

    def _admit(self, request: _Request) -> None:
        if request.future.cancelled():
            return
        try:
            engine = self._running.engine
            prompt = {"prompt_token_ids": request.ids}
            request.id = next(self._names)
            engine.add_request(request.id, prompt, self._parameters(request))
        except Exception as error:
            _settle([(request, _failure(error))])
        else:
            self._requests[request.id] = request

    def _parameters(self, request: _Request) -> Any:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        ends = request.sampling.stop_ids | self._eos
        settings = sampling_parameters(request.sampling, max_tokens=request.max_tokens, ends=ends)
        return SamplingParams(**settings, skip_clone=True, output_kind=RequestOutputKind.FINAL_ONLY)

    def _abort(self, request: _Request) -> None:
        if self._requests.pop(request.id, None) is not None:
            self._running.engine.abort_request([request.id])

    def _answer(self, outputs: Sequence[Any]) -> None:
        answers = []
        for output in outputs:
            request = self._requests.pop(output.request_id, None)
            if request is not None:
                answers.append((request, self._generation(output.outputs[0])))
        if answers:
            self._deaths = 0
            _settle(answers)

    def _generation(self, completion: Any) -> Generation:
        ids, logprobs = list(completion.token_ids), None
        if completion.logprobs is not None:
            logprobs = [top[token].logprob for token, top in zip(ids, completion.logprobs, strict=True)]
        return generation_of(
            ids, logprobs, completion.finish_reason, eos=self._eos, version=self.weights_version
        )

    def _die(self, error: Exception) -> None:
        """Fails what ran and builds the next engine; after too many deaths in a row there is none."""
        self._fail(_failure(error))
        self._shut_down()
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            self._fatal = EngineError(f"the engine died {self._deaths} times in a row: {_failure(error)}")
        else:
            try:
                self._build()
                self._push()
            except Exception as again:
                self._fatal = EngineError(f"the engine died and could not be built again: {_failure(again)}")

    def _build(self) -> None:
        self._instance = Instance(self._arguments, self._place, self._totals)
        self.kv_tokens = self._instance.kv_tokens

    def _push(self) -> None:
        self._running.push(self._weights, wake=self._spec.sleep)

    def _shut_down(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.shut_down()

    @property
    def _running(self) -> Instance:
        if self._instance is None:
            raise self._fatal or EngineError("the engine has not been started")
        return self._instance

    def _fail(self, error: Exception) -> None:
        failed, self._requests = self._requests, {}
        _settle([(request, error) for request in failed.values()])


def _reason(error: Exception) -> str:
    """What vLLM says last, or what pydantic says first."""
    if isinstance(error, ValidationError):
        return error.errors()[0]["msg"]
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _settle(answers: Sequence[tuple[_Request, Generation | Exception]]) -> None:
    """Hands answers to the coroutines that wait, with one wake-up per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[_Request, Generation | Exception]]] = {}
    for request, answer in answers:
        loops.setdefault(request.loop, []).append((request, answer))
    for loop, own in loops.items():
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(_resolve, own)


def _resolve(answers: Sequence[tuple[_Request, Generation | Exception]]) -> None:
    for request, answer in answers:
        if request.future.done():
            continue
        if isinstance(answer, Exception):
            request.future.set_exception(EngineError(str(answer)))
        else:
            request.future.set_result(answer)


def _failure(error: Exception) -> EngineError:
    """Its first line, with its kind."""
    if isinstance(error, EngineError):
        return error
    failure = EngineError(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    failure.__cause__ = error
    return failure
