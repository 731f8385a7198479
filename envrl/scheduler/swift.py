"""Plugs a scheduler that was written for ms-swift into an episode.

The plugin's `run` plays the trajectory. It reaches the model through `infer_engine`, which leads to a
`PluginEpisode`: what is asked there is rendered and sampled as everywhere in envrl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from envrl.engine.base import Engine
from envrl.env.base import Face
from envrl.env.compat.swift import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
    MultiTurnScheduler,
    RequestConfig,
    RolloutInferRequest,
    RolloutOutput,
    RolloutScheduler,
    remove_response,
)
from envrl.env.compat.swift.adapter import SwiftEnvironment, numbers, plain
from envrl.errors import ConfigError
from envrl.scheduler.base import Scheduler
from envrl.scheduler.conversation import answer
from envrl.scheduler.given import apply_given
from envrl.stop import StopReason

if TYPE_CHECKING:
    from envrl.rollout.trajectory import Episode
    from envrl.rollout.transcript import Turn
    from envrl.spec import SchedulerSpec


class TrajectoryOver(Exception):
    """A plugin went on asking after a limit had ended its episode."""


class SwiftScheduler(Scheduler):
    """One plugin object for all episodes, as in ms-swift; `adapt` makes the subclass for a plugin's class."""

    face = Face.TEXT
    author: ClassVar[type[RolloutScheduler]]

    def __init__(self, max_turns: int | None = None) -> None:
        self.plugin = self.author(infer_engine=_InferEngine(), max_turns=max_turns)

    @classmethod
    def of(cls, settings: SchedulerSpec) -> Self:
        """Hands the plugin its max_turns."""
        return cls(settings.max_turns)

    async def run(self, episode: Episode, engine: Engine) -> StopReason:
        """The plugin's run; what it returns about tokens and rewards is entered into the episode."""
        environment = episode.host.environment
        if not isinstance(environment, SwiftEnvironment):
            raise ConfigError(unfit(episode.task.env, type(self), type(environment)))
        playing = PluginEpisode(self.plugin, episode, engine)
        _current.set(playing)
        if hasattr(self.plugin, "gym_env_name") and environment.default != "none":
            self.plugin.gym_env_name = environment.default
        row = {"seed": episode.task.seed, **episode.task.row, "messages": episode.task.messages}
        request = environment.request(**row)
        if episode.prompt is not None:
            rest = [message for message in request.messages if message["role"] != "system"]
            request.messages = [{"role": "system", "content": episode.prompt}, *rest]
        environment.finalizer = partial(self.plugin.on_trajectory_end, request)
        try:
            played = await self.plugin.run(request, _config(episode))
        except TrajectoryOver:
            played = []
        outputs = played if isinstance(played, list) else [played]
        for output in outputs:
            playing.note(output.rollout_infos)
        apply_given(episode, outputs)
        environment.done = playing.stop is StopReason.DONE
        return playing.stop


@cache
def adapt(cls: type[RolloutScheduler]) -> type[SwiftScheduler]:
    """The scheduler class that plays this plugin's. Raises ConfigError for an unfinished one."""
    base = MultiTurnScheduler
    if issubclass(cls, base) and cls.run is base.run and cls.step is base.step:
        raise ConfigError(f"{cls.__name__} has neither step nor a run of its own")
    return type(cls.__name__, (SwiftScheduler,), {"author": cls, "__module__": cls.__module__})


def unfit(key: str, scheduler: type[Scheduler], environment: type) -> str:
    """Why an ms-swift scheduler cannot play another kind of environment."""
    return (
        f"env.{key}: {scheduler.__name__} is an ms-swift scheduler, and {environment.__name__} no "
        f"ms-swift environment; mend: env.{key}.target=none where the scheduler brings its own"
    )


class PluginEpisode:
    """One episode, as a plugin reaches it."""

    def __init__(self, plugin: Any, episode: Episode, engine: Engine) -> None:
        self.episode = episode
        self._plugin = plugin
        self._engine = engine
        self._limit: StopReason | None = None
        self._finished: StopReason | None = None
        self._infos: dict[str, Any] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def stop(self) -> StopReason:
        """Why the trajectory ended; a `run` of the plugin's own says so only by returning."""
        return self._limit or self._finished or StopReason.DONE

    async def infer(self, request: RolloutInferRequest) -> ChatCompletionResponse:
        """Lets the model answer; an empty answer, cut by length, where a limit leaves it no turn.

        Raises TrajectoryOver for whoever asks again nevertheless.
        """
        async with self._one_at_a_time:
            if self._limit is not None:
                raise TrajectoryOver
            turn = None
            if len(self.episode.turns) == self.episode.limits.max_turns:
                self._limit = StopReason.MAX_TURNS
            elif (turn := await answer(self.episode, request.messages, self._engine)) is None:
                self._limit = StopReason.LENGTH
            return self._response(turn)

    async def drive(self, request: RolloutInferRequest) -> RolloutOutput:
        """The default loop: hooks between the model's turns until one of them, or a limit, ends it."""
        plugin, output = self._plugin, RolloutOutput(self._response(None))
        await self._hook(plugin.on_trajectory_start, [request])
        remove_response(request.messages)
        while self._limit is None:
            output.response = await self.infer(request)
            choice, number = output.response.choices[0], len(self.episode.turns)
            if self._limit is not None:
                break
            _say(request, choice.message.content)
            said = await self._hook(plugin.on_turn_end, request, choice, number) or {}
            self.note(said.get("rollout_infos"))
            finished = await self._hook(plugin.check_finished, request, choice, number)
            given: dict[str, Any] = {}
            self._finished = self._ending(said, finished, choice, number)
            if self._finished is None:
                given = await self._hook(plugin.step, request, choice, number)
                request = given["infer_request"]
                self.note(given.get("rollout_infos"))
            _keep(output, choice, given)
            if self._finished is not None:
                break
        output.messages = request.messages
        output.rollout_infos = {**self._infos, "num_turns": len(self.episode.turns)}
        return output

    def _ending(
        self, said: dict[str, Any], finished: bool, choice: ChatCompletionResponseChoice, number: int
    ) -> StopReason | None:
        """Whether and why a turn was the last; `done` overrides check_finished, and no one max_turns."""
        if said.get("done", False):
            return StopReason.DONE
        if number == self.episode.limits.max_turns:
            return StopReason.MAX_TURNS
        if "done" in said or not finished:
            return None
        return StopReason.LENGTH if choice.finish_reason == "length" else StopReason.DONE

    def note(self, infos: dict[str, Any] | None) -> None:
        """Keeps rollout_infos: the reward, the numbers as metrics, all of it in the record."""
        if not infos:
            return
        self._infos |= infos
        environment = self.episode.host.environment
        environment.extra["rollout_infos"] = plain(self._infos)
        newest = {name: value for info in infos.get("infos") or [] for name, value in info.items()} | infos
        ours = {"total_reward", "gym_done", "num_turns"}
        environment.metrics |= {k: v for k, v in numbers(newest).items() if k not in ours}
        if isinstance(newest.get("success"), bool):
            environment.success = newest["success"]
        if infos.get("total_reward") is not None:
            environment.reward = float(infos["total_reward"])
            if self.episode.turns:
                self.episode.credit(self.episode.turns[-1])

    async def _hook(self, method: Callable[..., Any], *args: Any) -> Any:
        """One of the plugin's methods, sync or async, within the deadline of a step."""
        with self.episode.stepping():
            return await self.episode.host.call(method, self.episode.limits.step_timeout_s, *args)

    def _response(self, turn: Turn | None) -> ChatCompletionResponse:
        if turn is None:
            choice = ChatCompletionResponseChoice(0, ChatMessage("assistant", ""), "length", None, [])
            return ChatCompletionResponse("envrl", [choice])
        transcript = self.episode.transcripts[turn.transcript]
        span = slice(turn.start, turn.start + turn.tokens)
        ids, logprobs = transcript.ids[span], transcript.logprobs[span]
        if ids[-1] in self.episode.chat.stop_ids:
            ids, logprobs = ids[:-1], logprobs[:-1]
        choice = ChatCompletionResponseChoice(
            index=0,
            message=ChatMessage("assistant", turn.text),
            finish_reason="length" if turn.cut else "stop",
            logprobs={"content": [{"logprob": logprob} for logprob in logprobs]},
            token_ids=ids,
        )
        prompt = transcript.ids[: turn.start]
        return ChatCompletionResponse("envrl", [choice], prompt_token_ids=prompt)


_current: ContextVar[PluginEpisode] = ContextVar("current")
"""That of the episode whose task this is; tasks and threads that a plugin starts inherit it."""


class _InferEngine:
    """What plugins know as `infer_engine`: one object, which leads every episode to its own."""

    async def infer_async(self, infer_request: Any, request_config: Any = None, **kwargs: Any) -> Any:
        return await _current.get().infer(infer_request)

    async def drive(self, plugin: Any, infer_request: Any) -> RolloutOutput:
        return await _current.get().drive(infer_request)

    @property
    def tokenizer(self) -> Any:
        return _current.get().episode.chat.tokenizer


def _config(episode: Episode) -> RequestConfig:
    sampling = episode.sampling
    return RequestConfig(
        max_tokens=episode.limits.max_turn_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
    )


def _say(request: RolloutInferRequest, text: str) -> None:
    """The model's words at the end of the conversation, within a message that it went on with."""
    if request.messages[-1]["role"] == "assistant":
        request.messages[-1]["content"] += text
    else:
        request.messages.append({"role": "assistant", "content": text})


def _keep(output: RolloutOutput, choice: ChatCompletionResponseChoice, given: dict[str, Any]) -> None:
    """What is to be trained of a turn: all that was sampled, unless a step says otherwise."""
    ids = given.get("response_token_ids") or list(choice.token_ids or [])
    mask = given.get("response_loss_mask") or [1] * len(ids)
    output.response_token_ids.append(ids)
    output.response_loss_mask.append(mask)
    sampled = [item["logprob"] for item in (choice.logprobs or {"content": []})["content"]]
    output.rollout_logprobs.append(given.get("rollout_logprobs") or sampled)
