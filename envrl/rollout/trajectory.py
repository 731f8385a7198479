"""Episode: the conversation with an environment, and the record of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envrl.engine.base import Engine, GenerationStop, Sampling
from envrl.env.base import Face, ToolCall, checked_call
from envrl.errors import Blame, EngineError, WorldError, classify, finite_number
from envrl.rollout.transcript import TokenRow, Transcript, Turn
from envrl.seeds import derive
from envrl.stop import StopReason

if TYPE_CHECKING:
    from envrl.env.host import Host
    from envrl.model.chat import Chat
    from envrl.rollout.tasks import Task
    from envrl.spec import SchedulerSpec

__all__ = ["Episode", "TokenRow", "Transcript", "Turn"]


class Episode:
    """One attempt at one task: the environment, the conversation, and the record of both."""

    def __init__(
        self,
        task: Task,
        host: Host,
        chat: Chat,
        *,
        limits: SchedulerSpec,
        sampling: Sampling,
        name: str,
        prompt: str | None = None,
        tool_schemas: list[dict[str, Any]] | None = None,
    ) -> None:
        self.task = task
        self.host = host
        self.chat = chat
        self.limits = limits
        self.sampling = sampling
        self.name = name
        """Unique in the run; engines key their caches and seeds by it."""
        self.prompt = prompt
        self.tool_schemas = tool_schemas
        self.transcripts: list[Transcript] = []
        self.messages: list[dict[str, Any]] = []
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self.error: str | None = None
        self.retries = 0
        self.prompt_messages = 0
        """How many of the messages are the prompt."""
        self.metrics: dict[str, float] = {}
        self.extra: dict[str, Any] = {}
        """What a reward function of the group's noted about it."""
        self.env_reward: float | None = None
        self.success: bool | None = None
        self.rewards: dict[str, float | None] = {}
        """Reward terms; filled in by rollout.scoring.score."""
        self.reward: float | None = None
        """Their weighted sum; None means unscored."""
        self.reset_s = 0.0
        """What the environment took before the first turn; in turns it is their `step_s`."""
        self.prompt_s = 0.0
        """What rendering took before the first turn; in turns it is part of their `parse_s`."""
        self._credited: float | None = None
        self._started = time.perf_counter()
        self._duration: float | None = None

    # --- the conversation -------------------------------------------------------------------

    async def begin(self, face: Face) -> None:
        """Resets the environment and renders the prompt. Raises WorldError."""
        with self.stepping(), self._boundary():
            row = {"seed": self.task.seed, **deepcopy(self.task.row)}  # it is the whole group's
            if self.host.environment.conversational:
                row["messages"] = deepcopy(self.task.messages)
            observation = await self._ask(self.host.environment.reset, **row)
            if not isinstance(observation, str | None):
                raise WorldError(f"reset returned {observation!r:.80}, not text")
            rules = self.prompt
            if rules is None:
                rules = await self._ask(self.host.environment.instructions, face)
            self._credited = self._env_reward()
        messages = None if self.host.environment.conversational else self.task.messages
        self.fork(opening(face, rules, observation, messages), tools=face is Face.TOOL)

    def fork(self, messages: list[dict[str, Any]], *, tools: bool = True) -> None:
        """Starts a transcript from these messages; earlier ones are kept and trained too."""
        self.messages = list(messages)
        self.prompt_messages = len(messages)
        transcript = Transcript()
        with self.parsing():
            transcript.observe(self.chat.start(messages, tools=self.tool_schemas if tools else None))
        transcript.prompt_tokens = len(transcript.ids)
        self.transcripts.append(transcript)

    async def generate(self, engine: Engine) -> Turn | None:
        """Lets the model speak; None where no token of room is left."""
        transcript = self.transcripts[-1]
        room = self.room(engine)
        if room < 1:
            return None
        started = time.perf_counter()
        sampling = self._sampling(room)
        generation = await engine.generate(transcript.ids, sampling, episode=self.name)
        generated = time.perf_counter()
        if generation.stop is GenerationStop.ABORT:
            raise EngineError(f"the engine gave up {self.name} in turn {len(self.turns) + 1}")
        if not generation.ids:
            return None
        turn = Turn(
            text=self.chat.decode(generation.ids),
            stop=generation.stop,
            tokens=len(generation.ids),
            transcript=len(self.transcripts) - 1,
            start=len(transcript.ids),
            weights_version=generation.weights_version,
            generate_s=generated - started,
        )
        transcript.sample(generation)
        self.turns.append(turn)
        self.messages.append({"role": "assistant", "content": turn.text})
        turn.parse_s = time.perf_counter() - generated
        return turn

    def room(self, engine: Engine) -> int:
        """Tokens that may still be added: by the episode's budget and the engine's context."""
        return min(self.limits.max_tokens - self.length, engine.max_context - len(self.transcripts[-1].ids))

    def observe(self, messages: list[dict[str, Any]], engine: Engine) -> bool:
        """Renders messages for the model; False where they leave no room for it to answer."""
        transcript = self.transcripts[-1]
        with self.parsing():
            ids = self.chat.extend(messages)
            if transcript.ids[-1] != self.chat.turn_end:
                ids = [self.chat.turn_end, *ids]
            if len(ids) >= self.room(engine):
                return False
            transcript.observe(ids)
            return True

    def _sampling(self, room: int) -> Sampling:
        budget = min(room, self.limits.max_turn_tokens or room)
        return replace(self.sampling, max_tokens=budget, seed=derive(self.sampling.seed, len(self.turns)))

    # --- the environment --------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """The environment ended the episode."""
        return self.host.environment.done

    async def call(self, call: ToolCall) -> str:
        """Runs one call of the newest turn and returns the text for the model. Raises WorldError.

        What the model did wrong is the text; a call that is wrong never runs the tool.
        """
        turn = self.turns[-1]
        turn.calls += 1
        try:
            with self.parsing():
                tool, arguments = checked_call(self.host.environment, call)
            with self.stepping(), self._boundary():
                result = await self._ask(tool, **arguments)
        except ValueError as mistake:
            turn.failures += 1
            return f"Error: {mistake}"
        finally:
            with self._boundary():
                self.credit(turn)
        return "" if result is None else str(result)

    async def parse_action(self, text: str) -> ToolCall:
        """The environment's reading of a text. Raises ValueError with the text for the model."""
        turn = self.turns[-1]
        try:
            with self.stepping(), self._boundary():
                call: ToolCall = await self._ask(self.host.environment.parse_action, text)
                return call
        except ValueError:
            turn.calls += 1
            turn.failures += 1
            raise
        finally:
            with self._boundary():
                self.credit(turn)

    async def _ask(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """One call of the environment, where and as long as its host lets it run."""
        return await self.host.call(method, self.limits.step_timeout_s, *args, **kwargs)

    @contextmanager
    def _boundary(self) -> Iterator[None]:
        """Where an environment's exceptions are classified: ValueError passes, the rest is WorldError."""
        where = f"env {self.task.env}, turn {len(self.turns)}"
        try:
            yield
        except WorldError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:
            if classify(error) is Blame.MODEL and self.turns:
                raise
            raise WorldError(f"{where}: {type(error).__name__}: {error}") from error

    def _env_reward(self) -> float | None:
        reward = self.host.environment.reward
        return None if reward is None else finite_number("reward", reward)

    async def conclude(self) -> None:
        """Lets the environment work out its final reward, which is the last turn's. Raises WorldError."""
        if self.host.lost:
            return
        with self.stepping(), self._boundary():
            await self._ask(self.host.environment.conclude)
            if self.turns:
                self.credit(self.turns[-1])

    def credit(self, turn: Turn) -> None:
        """Records by how much the reward rose since it was last looked at."""
        reward = self._env_reward()
        if reward is not None:
            turn.reward = (turn.reward or 0.0) + reward - (self._credited or 0.0)
            self._credited = reward

    # --- where the time goes ----------------------------------------------------------------

    def stepping(self) -> AbstractContextManager[None]:
        """Time that is the environment's."""
        return self._timed("step_s", before="reset_s")

    def parsing(self) -> AbstractContextManager[None]:
        """Time that is ours: reading the model's words, and rendering what it is told."""
        return self._timed("parse_s", before="prompt_s")

    @contextmanager
    def _timed(self, name: str, *, before: str) -> Iterator[None]:
        """Adds to this time of the newest turn, or, before the first, to that of the episode."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            owner, field = (self.turns[-1], name) if self.turns else (self, before)
            setattr(owner, field, getattr(owner, field) + spent)

    # --- the record -------------------------------------------------------------------------

    def finish(self, stop: StopReason, error: str | None = None) -> None:
        """Closes the record; what the environment does later, in close or a stuck thread, stays out of it."""
        self.stop, self.error = stop, error
        if self._duration is None:  # a reward term may end it anew, long after play
            self._duration = time.perf_counter() - self._started
        if stop is StopReason.ERROR:
            self.metrics, self.rewards, self.env_reward, self.success = {}, {}, None, None
            return
        environment = self.host.environment
        with self._boundary():
            self.metrics = {
                str(name): finite_number(f"metric {name}", value)
                for name, value in environment.metrics.items()
            }
            self.extra = {**environment.extra, **self.extra}
            self.env_reward = self._env_reward()
            self.success = (
                None if environment.success is None else bool(finite_number("success", environment.success))
            )

    @property
    def length(self) -> int:
        """All tokens after the prompts, which is what max_tokens limits."""
        return sum(len(t.ids) - t.prompt_tokens for t in self.transcripts)

    @property
    def tokens(self) -> int:
        """Sampled by the model."""
        return sum(sum(transcript.mask) for transcript in self.transcripts)

    def record(self) -> dict[str, Any]:
        """One line of episodes.jsonl, and all that a reward term sees."""
        return {
            "name": self.name,
            "env": self.task.env,
            "seed": self.task.seed,
            "group": self.task.group,
            "member": self.task.member,
            "row": self.task.row,
            "stop": self.stop,
            "error": self.error,
            "retries": self.retries,
            "reward": self.reward,
            "rewards": dict(self.rewards),
            "env_reward": self.env_reward,
            "success": self.success,
            "messages": self.messages,
            "turns": [dict(vars(turn)) for turn in self.turns],
            "metrics": self.metrics,
            "extra": self.extra,
            "tokens": self.tokens,
            "reset_s": self.reset_s,
            "prompt_s": self.prompt_s,
            "duration_s": self._duration,
        }

    def rows(self, advantage: float | Sequence[float]) -> list[TokenRow]:
        """Its transcripts with this advantage on every sampled token; those without any are left out.

        A sequence has one advantage per turn.
        """
        truncated = self.stop is not None and self.stop.truncated
        return [
            TokenRow(t.ids, t.mask, t.logprobs, self._spread(advantage, index), truncated)
            for index, t in enumerate(self.transcripts)
            if any(t.mask)
        ]

    def _spread(self, advantage: float | Sequence[float], index: int) -> list[float]:
        """The advantages of a transcript's tokens."""
        mask_T = self.transcripts[index].mask
        if not isinstance(advantage, Sequence):
            return [advantage * m for m in mask_T]
        spread_T = [0.0] * len(mask_T)
        for turn, own in zip(self.turns, advantage, strict=True):
            if turn.transcript == index:
                end = turn.start + turn.tokens
                spread_T[turn.start : end] = [own * m for m in mask_T[turn.start : end]]
        return spread_T


def opening(
    face: Face, rules: str, observation: str | None, messages: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The first messages: a dataset row's own win over the rules.

    The rules are the user's where there are tools, and the system's where there is text alone. The
    observation is appended to the user's last message, or is one.
    """
    role = "user" if face is Face.TOOL else "system"
    opened = [dict(m) for m in messages or ([{"role": role, "content": rules}] if rules else [])]
    if not opened or opened[-1]["role"] != "user":
        opened.append({"role": "user", "content": observation or ""})
    elif observation:
        opened[-1]["content"] = f"{opened[-1]['content']}\n\n{observation}"
    return opened
