"""Small ms-swift environments and schedulers, each with a habit of its own."""

from __future__ import annotations

import asyncio
from ast import literal_eval
from typing import Any

from envrl.env.compat.swift import (
    Env,
    GYMScheduler,
    Messages,
    MultiTurnScheduler,
    RolloutInferRequest,
    RolloutOutput,
    envs,
    multi_turns,
)


class Diary(Env):
    """Notes all that it is told; ends when it hears `stop`, breaks when it hears `crash`."""

    written: list[Diary] = []  # noqa: RUF012 - tests empty it

    def __init__(self, env_config: dict[str, Any]) -> None:
        super().__init__(env_config)
        self.heard: list[Messages] = []
        self.loops: set[int] = set()
        self.closed = 0
        Diary.written.append(self)

    async def reset(self, config: RolloutInferRequest) -> tuple[str, dict[str, Any], str]:
        self.request = config
        self._note()
        return "Dear diary", {"mood": "good"}, self.env_config.get("system", "")

    async def step(self, action: Messages) -> tuple[Any, ...]:
        self._note()
        self.heard.append(action)
        text = action[-1]["content"]
        action.clear()
        if text == "crash":
            raise ValueError("no ink left")
        if text == "sleep":
            await asyncio.sleep(60)
        done = text == "stop"
        return f"page {len(self.heard)}", 0.5, done, {"page": len(self.heard), "text": text, "when": object}

    async def close(self) -> None:
        self._note()
        self.closed += 1

    def _note(self) -> None:
        self.loops.add(id(asyncio.get_running_loop()))


class Modern(Diary):
    """Five parts, and methods that are not async."""

    def reset(self, config: RolloutInferRequest) -> tuple[str, dict[str, Any], str]:  # type: ignore[override]
        return "Dear diary", {}, ""

    def step(self, action: Messages) -> tuple[Any, ...]:  # type: ignore[override]
        return "over", 1, False, True, {"success": True}

    def close(self) -> None:  # type: ignore[override]
        self.closed += 1


class Parrot(Diary):
    """A step returns what the model wrote."""

    async def step(self, action: Messages) -> Any:
        return literal_eval(action[-1]["content"])


class Hinter(MultiTurnScheduler):
    """Says what was wrong until the model says 42; hooks are sync or async as they like."""

    calls: list[str] = []  # noqa: RUF012 - tests empty it

    def on_trajectory_start(self, requests: list[Any]) -> None:  # type: ignore[override]
        self.calls.append(f"start {[m['content'] for m in requests[0].messages]}")

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> Any:
        self.calls.append(f"end {current_turn} {infer_request.messages[-1]['content']}")

    async def check_finished(  # type: ignore[override]
        self, infer_request: Any, response_choice: Any, current_turn: int
    ) -> bool:
        self.calls.append(f"check {response_choice.finish_reason}")
        right = response_choice.message.content == infer_request.data_dict["solution"]
        return right or super().check_finished(infer_request, response_choice, current_turn)

    async def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Any:  # type: ignore[override]
        self.calls.append(f"step {current_turn}")
        infer_request.messages.append({"role": "user", "content": "Try again."})
        return {
            "infer_request": infer_request,
            "rollout_infos": {"hints": current_turn, "last": "Try again."},
        }


class Forgetful(Hinter):
    """Shows the model only its last answer, in brief."""

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Any:  # type: ignore[override]
        question = infer_request.messages[0]
        asked = {"role": "user", "content": f"You said {response_choice.message.content}."}
        infer_request.messages = [question, asked]
        return {"infer_request": infer_request}


class Tipper(Hinter):
    """Goes on within the model's own message, behind a tip that is not trained."""

    tip = " But wait,"

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Any:  # type: ignore[override]
        infer_request.messages[-1]["content"] += self.tip
        ids = list(response_choice.token_ids)
        tip = self.tokenizer.encode(self.tip, add_special_tokens=False)
        mask = [1] * len(ids) + [0] * len(tip)
        return {
            "infer_request": infer_request,
            "response_token_ids": ids + tip,
            "response_loss_mask": mask,
        }


class Cutter(Tipper):
    """Keeps two tokens of each turn, with log-probs of its own, and goes on from there."""

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Any:  # type: ignore[override]
        kept = list(response_choice.token_ids[:2])
        infer_request.messages[-1]["content"] = self.tokenizer.decode(kept) + self.tip
        return {"infer_request": infer_request, "response_token_ids": kept, "rollout_logprobs": [-1.0, -2.0]}


class Muted(Hinter):
    """Trains every second turn alone."""

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Any:  # type: ignore[override]
        ids = response_choice.token_ids
        infer_request.messages.append({"role": "user", "content": "Go on."})
        mask = [current_turn % 2] * len(ids)
        return {"infer_request": infer_request, "response_token_ids": ids, "response_loss_mask": mask}


class Forger(Hinter):
    """Wants to train what the model never said."""

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Any:  # type: ignore[override]
        ids = [*response_choice.token_ids, *response_choice.token_ids]
        infer_request.messages.append({"role": "user", "content": "Go on."})
        return {"infer_request": infer_request, "response_token_ids": ids}


class OwnRun(MultiTurnScheduler):
    """Two answers to one question, each a trajectory of its own."""

    async def run(self, infer_request: Any, request_config: Any, **kwargs: Any) -> list[RolloutOutput]:
        outputs = []
        for number in range(2):
            response = await self.infer_engine.infer_async(infer_request, request_config, **kwargs)
            choice = response.choices[0]
            told = {"role": "assistant", "content": choice.message.content}
            output = RolloutOutput(response, [*infer_request.messages, told], choice.token_ids)
            output.rollout_infos = {"total_reward": number + 1.0, "num_turns": 1}
            outputs.append(output)
        return outputs


class Endless(MultiTurnScheduler):
    """Never stops asking."""

    async def run(self, infer_request: Any, request_config: Any, **kwargs: Any) -> Any:
        while True:
            response = await self.infer_engine.infer_async(infer_request, request_config)
            infer_request.messages.append(
                {"role": "assistant", "content": response.choices[0].message.content}
            )
            infer_request.messages.append({"role": "user", "content": "More."})


class Wrapped(GYMScheduler):
    """Plays the default loop and looks at what came of it."""

    async def run(self, infer_request: Any, request_config: Any, **kwargs: Any) -> Any:
        output = await super().run(infer_request, request_config, **kwargs)
        assert isinstance(output, RolloutOutput)
        assert len(output.response_token_ids) == output.rollout_infos["num_turns"]
        output.rollout_infos["total_reward"] *= 10
        return output


class Stuck(GYMScheduler):
    """Waits for ever at the end of a turn."""

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> Any:
        await asyncio.sleep(60)


class Unfinished(MultiTurnScheduler):
    """Neither step nor run."""


envs |= {"diary": Diary, "modern": Modern}
multi_turns["hinter"] = Hinter
