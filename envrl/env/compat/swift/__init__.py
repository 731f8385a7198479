"""What plugins for ms-swift import, so that they run here with that one line changed.

    from envrl.env.compat.swift import Env, envs, multi_turns, MultiTurnScheduler, GYMScheduler, ...

An `Env` plays under `scheduler=gym`, or under a scheduler of multi_turns named by `scheduler.target`. What
differs from ms-swift: every turn is trained, from the tokens as they were sampled; `info` is kept, its
numbers as metrics; environments are closed on every exit path; a call has scheduler.step_timeout_s; what
is raised ends its own episode, which is tried again; a row without `env_config` gets one made of
env.<key>.args and its group's seed.
"""

from __future__ import annotations

from logging import Logger, getLogger

from envrl.env.compat.swift.gym_env import Env, NoEnv, envs
from envrl.env.compat.swift.multi_turn import (
    GYMScheduler,
    MultiTurnScheduler,
    RolloutScheduler,
    multi_turns,
)
from envrl.env.compat.swift.openenv import OpenEnvScheduler, OpenEnvWrapper
from envrl.env.compat.swift.protocol import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
    InferRequest,
    Messages,
    RequestConfig,
    RolloutInferRequest,
    RolloutOutput,
    remove_response,
)

__all__ = [
    "ChatCompletionResponse",
    "ChatCompletionResponseChoice",
    "ChatMessage",
    "Env",
    "GYMScheduler",
    "InferRequest",
    "Messages",
    "MultiTurnScheduler",
    "NoEnv",
    "OpenEnvScheduler",
    "OpenEnvWrapper",
    "RequestConfig",
    "RolloutInferRequest",
    "RolloutOutput",
    "RolloutScheduler",
    "envs",
    "get_logger",
    "multi_turns",
    "remove_response",
]


def get_logger() -> Logger:
    """A logger whose lines stand in the run's log."""
    return getLogger("envrl.plugins")
