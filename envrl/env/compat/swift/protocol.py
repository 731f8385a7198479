"""What travels between an ms-swift scheduler and its engine, under the names that plugins import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

Messages = list[dict[str, Any]]
"""`{"role": …, "content": …}` each."""


@dataclass
class InferRequest:
    """A conversation that the model is to answer. Images and the like are carried, never rendered."""

    messages: Messages
    images: list[Any] = field(default_factory=list)
    audios: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)
    tools: list[Any] | None = None
    objects: dict[str, Any] = field(default_factory=dict)
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class RolloutInferRequest(InferRequest):
    """A trajectory: its conversation, the columns of its dataset row, and a name of its own."""

    data_dict: dict[str, Any] = field(default_factory=dict)
    uuid: str | None = None


@dataclass
class RequestConfig:
    """Settings of a request. They say how this run samples; what a plugin changes in them has no effect."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    stop: list[str] = field(default_factory=list)
    seed: int | None = None
    stream: bool = False
    logprobs: bool = True
    n: int = 1
    return_details: bool = True


@dataclass
class ChatMessage:
    """What the model said, without the token that ended it."""

    role: str
    content: str
    tool_calls: list[Any] | None = None
    reasoning_content: str | None = None


@dataclass
class ChatCompletionResponseChoice:
    """One answer. Ids and log-probs leave out the end token, so that they stand for `message.content`."""

    index: int
    message: ChatMessage
    finish_reason: str | None
    """`stop` or `length`."""
    logprobs: dict[str, list[dict[str, Any]]] | None = None
    """`{"content": [{"logprob": …}, …]}`, one per id."""
    token_ids: list[int] | None = None


@dataclass
class ChatCompletionResponse:
    """The model's answer to a request; there is always one choice."""

    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: Any = None
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    prompt_token_ids: list[int] | None = None


@dataclass
class RolloutOutput:
    """What a trajectory came to. The lists have one entry per turn of the model."""

    response: ChatCompletionResponse
    messages: Messages | None = None
    response_token_ids: list[list[int]] = field(default_factory=list)
    response_loss_mask: list[list[int]] = field(default_factory=list)
    rollout_infos: dict[str, Any] = field(default_factory=dict)
    rollout_logprobs: list[list[float]] = field(default_factory=list)
    """One number per id whose mask is 1."""


def remove_response(messages: Messages) -> str | None:
    """Takes a last assistant message off, and returns its content."""
    if messages and messages[-1]["role"] == "assistant":
        return str(messages.pop()["content"])
    return None
