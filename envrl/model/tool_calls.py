"""Tool calls as Qwen and Hermes write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

import json
import re
from typing import Any

from envrl.env.base import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

_THINK_TAG = re.compile(r"<(/?think>)")
_ESCAPED = r"\\u003c\1"
_THOUGHT = re.compile(f"{THINK_OPEN}.*?{THINK_CLOSE}", re.DOTALL)


def strip_thinking(text: str) -> str:
    """The text without its reasoning, where drafted calls and moves are not meant.

    Closed think blocks go, then what stands before a `</think>` without opening (the prompt opened it),
    then what follows a `<think>` that was never closed.
    """
    spoken = _THOUGHT.sub("", text)
    return spoken.rpartition(THINK_CLOSE)[2].partition(THINK_OPEN)[0]


def parse_tool_calls(text: str, *, prefix: str = "call") -> list[ToolCall]:
    """All calls of one model turn in their order; ids are `prefix` and a running number.

    One that cannot be run is returned too: its `error` is the text for the model.
    """
    rest = strip_thinking(text).partition(OPEN)
    calls: list[ToolCall] = []
    while rest[1]:
        name, arguments, error, unread = _read(rest[2])
        calls.append(ToolCall(name, arguments, f"{prefix}_{len(calls)}", error))
        rest = unread.partition(OPEN)
    return calls


def format_tool_call(call: ToolCall) -> str:
    """The block that `parse_tool_calls` reads as this call."""
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    # A think tag inside a string would hide the rest of the call.
    return f"{OPEN}\n{_THINK_TAG.sub(_ESCAPED, body)}\n{CLOSE}"


def _read(block: str) -> tuple[str, dict[str, Any], str | None, str]:
    """Name, arguments, error and the unread rest of a text that stands behind an opening tag."""
    try:
        # The decoder, not the closing tag, finds the end: a tag may stand inside a string.
        payload, unread = _decode(block)
    except ValueError as error:
        return "", {}, str(error), block
    try:
        if not unread.lstrip().startswith(CLOSE):
            raise ValueError(f"the tool call does not end with {CLOSE} after its JSON object")
        return *_parts(payload), None, unread
    except ValueError as error:
        return "", {}, str(error), unread


def _parts(payload: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a decoded call. Raises ValueError."""
    if not isinstance(payload, dict):
        raise ValueError('a tool call must be a JSON object with "name" and "arguments"')
    name, arguments = payload.get("name"), payload.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError('the tool call has no "name"')
    if isinstance(arguments, str):
        arguments, rest = _decode(arguments)
        if rest.strip():
            raise ValueError("invalid JSON in the tool call: text after the arguments")
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" of the tool call must be a JSON object')
    return name, arguments


def _decode(text: str) -> tuple[Any, str]:
    """The JSON value that a text starts with, and the text behind it. Raises ValueError."""
    text = text.lstrip()
    try:
        payload, end = _DECODER.raw_decode(text)
        if "\\u" in text:  # lone surrogates are legal JSON, but no text that could be shown or stored
            json.dumps(payload, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid JSON in the tool call: {error}") from None
    return payload, text[end:]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
