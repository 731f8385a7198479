"""Conversations that somebody else keeps: another program's agent, or a scheduler plugin.

They hand over all messages each time. What only grew is appended to the tokens that are there; what was
rewritten starts a transcript of its own, so that every token is trained in the context it was sampled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envrl.engine.base import Engine
    from envrl.rollout.trajectory import Episode
    from envrl.rollout.transcript import Turn

Message = dict[str, Any]


async def answer(
    episode: Episode, messages: Sequence[Message], engine: Engine, *, tools: bool = False
) -> Turn | None:
    """Lets the model answer a conversation; None where no token of room is left for it.

    A conversation that ends with the assistant is gone on with, in that same message. `tools` shows the
    environment's tools at the start of a transcript.
    """
    messages = [dict(message) for message in messages]
    if not messages:
        raise ValueError("a conversation without messages cannot be answered")
    going_on = messages[-1]["role"] == "assistant"
    if going_on and _is_lengthened(episode, messages):
        _lengthen(episode, str(messages[-1]["content"]))
    elif going_on:
        _open(episode, messages, tools=tools)
    elif episode.transcripts and (new := _grown(episode.messages, messages)) is not None:
        episode.messages += new
        if new and not episode.observe(new, engine):
            return None
    else:
        episode.fork(messages, tools=tools)
    turn = await episode.generate(engine)
    if turn is not None and going_on:
        episode.messages[-2]["content"] += episode.messages.pop()["content"]
    return turn


def _grown(known: Sequence[Message], messages: Sequence[Message]) -> list[Message] | None:
    """The messages behind those that are known; None where the known ones are not the beginning."""
    new = list(messages[len(known) :])
    if not _same(known, messages[: len(known)]) or any(m["role"] == "assistant" for m in new):
        return None
    return new


def _is_lengthened(episode: Episode, messages: Sequence[Message]) -> bool:
    """Whether the model's last turn stands at the end as it was, or with text behind it."""
    known, transcripts, turns = episode.messages, episode.transcripts, episode.turns
    if not (turns and _same(known[:-1], messages[:-1]) and known[-1]["role"] == "assistant"):
        return False
    last = turns[-1].transcript, turns[-1].start + turns[-1].tokens
    ends_here = last == (len(transcripts) - 1, len(transcripts[-1].ids))
    return ends_here and str(messages[-1]["content"]).startswith(known[-1]["content"])


def _lengthen(episode: Episode, content: str) -> None:
    """Takes back the end of the model's last turn, and adds what somebody wrote behind it."""
    transcript, turn = episode.transcripts[-1], episode.turns[-1]
    if transcript.ids[-1] in episode.chat.stop_ids:
        for values in (transcript.ids, transcript.mask, transcript.logprobs):
            values.pop()
        turn.tokens -= 1
    added = content.removeprefix(episode.messages[-1]["content"])
    transcript.observe(episode.chat.encode(added))
    episode.messages[-1]["content"] = content


def _open(episode: Episode, messages: list[Message], *, tools: bool) -> None:
    """Starts a transcript within an assistant's message that the model did not write as it stands."""
    episode.fork(messages[:-1], tools=tools)
    transcript = episode.transcripts[-1]
    transcript.observe(episode.chat.encode(str(messages[-1]["content"])))
    transcript.prompt_tokens = len(transcript.ids)
    episode.messages.append(messages[-1])
    episode.prompt_messages = len(messages)


def _same(known: Sequence[Message], given: Sequence[Message]) -> bool:
    """Equality of what a template shows; an agent may carry more."""
    return [(m["role"], m["content"]) for m in known] == [(m["role"], m["content"]) for m in given]
