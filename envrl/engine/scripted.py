"""An engine that replays what it is given: for tests of everything above engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from envrl.engine.base import Engine, Generation, GenerationStop, Sampling
from envrl.errors import EngineError

Reply = str | Sequence[int]


class ScriptedEngine(Engine):
    """Replays texts or id lists, from the start for every episode.

    `replies` may also be a function of (episode, turn). Texts become ids by `encode`, by default one id
    per UTF-8 byte; `stop_id` is appended where a reply does not end in it. A reply is cut at
    `max_tokens` and at the context, as a model's would be. `requests` records what was asked.
    """

    def __init__(
        self,
        replies: Sequence[Reply] | Callable[[str, int], Reply],
        *,
        encode: Callable[[str], list[int]] | None = None,
        stop_id: int | None = None,
        max_context: int = 1 << 20,
        logprob: float = -0.5,
        delay_s: float = 0.0,
    ) -> None:
        self.max_context = max_context
        self.requests: list[tuple[str, list[int], Sampling]] = []
        self.released: list[str] = []
        self._replies = replies
        self._encode = encode or (lambda text: list(text.encode()))
        self._stop_id = stop_id
        self._logprob = logprob
        self._delay_s = delay_s
        self._turns: Counter[str] = Counter()

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """The episode's next reply; EngineError where none is left."""
        self.requests.append((episode, list(ids), sampling))
        turn = self._turns[episode]
        self._turns[episode] += 1
        await asyncio.sleep(self._delay_s)
        reply = self._ids(self._reply(episode, turn))
        room = max(min(sampling.max_tokens, self.max_context - len(ids)), 0)
        stop = GenerationStop.EOS if len(reply) <= room else GenerationStop.LENGTH
        reply = reply[:room]
        return Generation(reply, [self._logprob] * len(reply), stop, self.weights_version)

    async def release(self, episode: str) -> None:
        """Forgets the episode; under the same name it would start from the first reply again."""
        self.released.append(episode)
        self._turns.pop(episode, None)

    def _reply(self, episode: str, turn: int) -> Reply:
        if callable(self._replies):
            return self._replies(episode, turn)
        if turn >= len(self._replies):
            raise EngineError(f"episode {episode}: no reply left for turn {turn}")
        return self._replies[turn]

    def _ids(self, reply: Reply) -> list[int]:
        ids = self._encode(reply) if isinstance(reply, str) else list(reply)
        if self._stop_id is not None and ids[-1:] != [self._stop_id]:
            ids = [*ids, self._stop_id]
        return ids
