"""The contract of an engine: token ids in, token ids and their log-probabilities out.

Every episode's coroutine awaits its own tokens; an engine batches whatever is waiting. Cancelling
the coroutine aborts the request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import add, sub
from typing import TYPE_CHECKING, Any, Self

from envrl.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor


class GenerationStop(StrEnum):
    """Why a generation ended."""

    EOS = "eos"
    """One of the model's own end tokens."""
    STOP = "stop"
    """Another id of `Sampling.stop_ids`."""
    LENGTH = "length"
    """`Sampling.max_tokens`, or the engine's context, is used up."""
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one request is sampled. Temperature 0 is greedy; top_k 0 and top_p 1 switch those filters off."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0


@dataclass(frozen=True)
class Generation:
    """What one request sampled.

    `ids` holds the stop id where there is one; `logprobs` holds, per id, its natural
    log-probability under the distribution that it was sampled from (0.0 when greedy).
    """

    ids: list[int]
    logprobs: list[float]
    stop: GenerationStop
    weights_version: int
    trained: bool = True
    """False for what is said without being worth learning."""


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """Totals since the engine started; seconds are summed over requests."""

    queue_s: float = 0.0
    """From the request to its first forward pass."""
    prefill_s: float = 0.0
    """From there to the first sampled token."""
    decode_s: float = 0.0
    """From there to the last."""
    prompt_tokens: int = 0
    """Of all requests, those of earlier turns included."""
    cached_tokens: int = 0
    """Those among them whose keys and values were there already."""
    preemptions: int = 0
    """Requests that lost their memory to others and were computed again."""

    def __add__(self, other: Self) -> Self:
        return self._with(add, other)

    def __sub__(self, other: Self) -> Self:
        return self._with(sub, other)

    def _with(self, operator: Callable[[Any, Any], Any], other: Self) -> Self:
        names = self.__dataclass_fields__
        return type(self)(**{n: operator(getattr(self, n), getattr(other, n)) for n in names})


class Engine(ABC):
    """Continuous batching over one model."""

    weights_version: int = 0
    """Raised by `load_weights`; each Generation carries the version that made it."""
    max_context: int
    """Prompt and completion together, in tokens."""
    kv_tokens: int | None = None
    """How many tokens' keys and values fit at once; None where that is unknown or unbounded.

    Ranks that share an engine have a part each.
    """

    async def start(self) -> None:
        """Brings the engine up; `generate` may be called afterwards."""

    @abstractmethod
    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """Samples a continuation of `ids`; `episode` names the conversation whose cache may be reused.

        A prompt that leaves no room in the context ends as `length` with no ids. Raises EngineError.
        """

    def room(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> int:
        """Tokens that a request may sample, by its own limit and the context; none below 1.

        Raises EngineError for an empty prompt.
        """
        if not ids:
            raise EngineError(f"episode {episode}: the prompt is empty")
        return min(sampling.max_tokens, self.max_context - len(ids))

    def no_room(self) -> Generation:
        """The answer where none is left."""
        return Generation([], [], GenerationStop.LENGTH, self.weights_version)

    async def release(self, episode: str) -> None:
        """Forgets an episode: its cache and its routing. Harmless when unknown."""

    async def stats(self) -> EngineStats:
        """Where its time went, and what it computed: no figure ever falls.

        Never raises: an engine that cannot be asked now says what it said last. Ranks that share an engine
        are each told their part.
        """
        return EngineStats()

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Waits for running requests, takes the weights (Hugging Face names), resets every cache.

        `weights` can be walked again: an engine that dies walks it for its successor.
        """
        self.weights_version = version

    async def sleep(self) -> None:
        """Frees the accelerator while the update runs."""

    async def wake(self) -> None:
        """Undoes `sleep`; weights are loaded again before the first request."""

    async def close(self) -> None:
        """Frees everything."""
