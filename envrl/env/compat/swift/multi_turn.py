"""ms-swift's schedulers: base classes for plugins, and the registry.

A plugin overrides hooks, or `run`. Its `infer_engine` is ours: `infer_async` lets the model answer a
request, token in and token out, and the default `run` hands the loop to it (envrl/scheduler/swift.py).
One object serves all trajectories at once; what it keeps, it keeps by `uuid`.
"""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

from envrl.env.compat.swift.gym_env import Env, make_env, opened, outcome, settled
from envrl.env.compat.swift.protocol import (
    ChatCompletionResponseChoice,
    RequestConfig,
    RolloutInferRequest,
    RolloutOutput,
)

Request = RolloutInferRequest
Choice = ChatCompletionResponseChoice


class RolloutScheduler:
    """One turn of the model, and nothing more."""

    def __init__(self, infer_engine: Any = None, max_turns: int | None = None, *args: Any, **kwargs: Any):
        self.infer_engine = infer_engine
        self.max_turns = max_turns

    @property
    def engine(self) -> Any:
        """Another name of `infer_engine`."""
        return self.infer_engine

    @property
    def tokenizer(self) -> Any:
        """The model's; known once an episode runs."""
        return self.infer_engine.tokenizer

    async def on_trajectory_start(self, requests: list[Request]) -> None:
        """May replace the messages of the requests."""

    async def on_turn_end(
        self, infer_request: Request, response_choice: Choice, current_turn: int
    ) -> dict[str, Any]:
        """Called when the model's turn is in the messages; returns `done` and `rollout_infos`, or less."""
        return {}

    async def on_trajectory_end(self, infer_request: Request) -> None:
        """Called on every exit path, when rewards are given. An addition of ours."""

    async def run(
        self, infer_request: Request, request_config: RequestConfig, **kwargs: Any
    ) -> RolloutOutput | list[RolloutOutput]:
        """Plays one trajectory."""
        response = await self.infer_engine.infer_async(infer_request, request_config, **kwargs)
        return RolloutOutput(response, infer_request.messages, rollout_infos={"num_turns": 1})


class MultiTurnScheduler(RolloutScheduler):
    """Turn after turn; a subclass writes `step`, or a `run` of its own."""

    async def run(
        self, infer_request: Request, request_config: RequestConfig, **kwargs: Any
    ) -> RolloutOutput | list[RolloutOutput]:
        """on_trajectory_start, then per turn: the model, on_turn_end, check_finished, step."""
        output: RolloutOutput = await self.infer_engine.drive(self, infer_request)
        return output

    def step(self, infer_request: Request, response_choice: Choice, current_turn: int) -> dict[str, Any]:
        """The next request, as `infer_request`.

        Beside it `response_token_ids`, `response_loss_mask` and `rollout_logprobs` of the turn, and
        `rollout_infos`, may be given.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def check_finished(self, infer_request: Request, response_choice: Choice, current_turn: int) -> bool:
        """True after a turn that was cut short and after the last one; `done` of on_turn_end overrides it."""
        last = self.max_turns is not None and current_turn >= self.max_turns
        return response_choice.finish_reason == "length" or last


class GYMScheduler(MultiTurnScheduler):
    """Plays an `Env`: its observations are the user's messages, the sum of its rewards is `total_reward`."""

    def __init__(self, infer_engine: Any = None, max_turns: int | None = None, *args: Any, **kwargs: Any):
        super().__init__(infer_engine, max_turns, *args, **kwargs)
        self.gym_env_name: Any = kwargs.get("gym_env")
        """Plays where a row names no environment; the run sets it to that of env.<key>."""
        # Under ms-swift's own names, which subclasses read and write.
        self._envs: dict[str, Any] = {}
        self._total_rewards: dict[str, float] = {}
        self._step_rewards: dict[str, list[float]] = {}
        self._pending_obs: dict[str, str | None] = {}
        self._infos: dict[str, list[dict[str, Any]]] = {}

    async def on_trajectory_start(self, requests: list[Request]) -> None:
        """Resets one environment per request; what it says replaces the messages."""
        await asyncio.gather(*map(self._reset, requests))

    async def _reset(self, request: Request) -> None:
        env = await self._open(request, request.data_dict.get("env_config") or {})
        observation, info, system = opened(await settled(env.reset(request)))
        self._begin(request, observation, system, info)

    async def _open(self, request: Request, env_config: dict[str, Any]) -> Any:
        """A new environment, noted before its reset, so that it is closed where that fails."""
        await self._close_and_remove(_uuid(request))
        env = self._envs[_uuid(request)] = self._create_env(env_config)
        return env

    def _begin(self, request: Request, observation: str, system: str, info: dict[str, Any] | None) -> None:
        opening = [{"role": "system", "content": system}] if system else []
        request.messages = [*opening, {"role": "user", "content": observation}]
        self._total_rewards[_uuid(request)] = 0.0
        self._step_rewards[_uuid(request)] = []
        self._pending_obs[_uuid(request)] = None
        self._infos[_uuid(request)] = [info or {}]

    async def on_turn_end(
        self, infer_request: Request, response_choice: Choice, current_turn: int
    ) -> dict[str, Any]:
        """Steps the environment."""
        env = self._envs.get(_uuid(infer_request))
        if env is None:
            return {"done": True, "rollout_infos": {}}
        return self._took(infer_request, await settled(env.step(deepcopy(infer_request.messages))))

    def _took(self, request: Request, step: tuple[Any, ...]) -> dict[str, Any]:
        """Keeps what a step brought, and reports it."""
        uuid = _uuid(request)
        observation, reward, done, info = outcome(step)
        steps = self._step_rewards.setdefault(uuid, [])
        steps.append(reward)
        self._total_rewards[uuid] = self._total_rewards.get(uuid, 0.0) + reward
        self._pending_obs[uuid] = None if done else observation
        self._infos.setdefault(uuid, []).append(info)
        infos = {
            "total_reward": self._total_rewards[uuid],
            "step_rewards": list(steps),
            "gym_done": done,
            "infos": list(self._infos[uuid]),
        }
        return {"done": done, "rollout_infos": infos}

    def step(self, infer_request: Request, response_choice: Choice, current_turn: int) -> dict[str, Any]:
        """Tells the model what the environment answered."""
        observation = self._pending_obs.pop(_uuid(infer_request), None)
        if observation is not None:
            infer_request.messages.append({"role": "user", "content": observation})
        return {"infer_request": infer_request}

    async def on_trajectory_end(self, infer_request: Request) -> None:
        """Closes the environment, also where a limit ended the trajectory."""
        await self._close_and_remove(_uuid(infer_request))

    def _create_env(self, env_config: dict[str, Any]) -> Any:
        return make_env(env_config, self.gym_env_name)

    async def _close_and_remove(self, uuid: str) -> None:
        env = self._envs.pop(uuid, None)
        for kept in (self._total_rewards, self._step_rewards, self._pending_obs, self._infos):
            kept.pop(uuid, None)
        if env is not None:
            await self._close(env)

    async def _close(self, env: Env) -> None:
        await settled(env.close())


def _uuid(request: Request) -> str:
    assert request.uuid is not None, "the run names every request"
    return request.uuid


multi_turns: dict[str, Any] = {"gym_scheduler": GYMScheduler}
"""Name -> scheduler class, chosen with `scheduler.target=<name>`. Plugins add theirs."""
