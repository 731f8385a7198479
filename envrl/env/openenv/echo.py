"""Echo servers: today's offers MCP tools and pays nothing, the one before takes messages and pays by length.

Any other MCP server is spoken to likewise: a call goes out under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envrl.env.base import ToolCall
from envrl.env.echo import PER_CHARACTER
from envrl.env.echo import Echo as Local
from envrl.env.openenv.adapters import Outcome
from envrl.env.openenv.foreign import Foreign, server_reward
from envrl.env.openenv.generic import as_text
from envrl.errors import WorldError

if TYPE_CHECKING:
    from envrl.env.openenv.sessions import Reply


class Echo(Foreign):
    """A server of MCP tools."""

    title = "CallToolAction"

    _messages = 0

    def action(self, call: ToolCall) -> dict[str, Any]:
        """A call of the tool; our `echo` is called `echo_message` there."""
        if call.name == "act":
            return super().action(call)
        name = "echo_message" if call.name == "echo" else call.name
        return {"type": "call_tool", "tool_name": name, "arguments": dict(call.arguments)}

    def text_action(self, text: str) -> dict[str, Any]:
        """The text is the message; with kind=openenv it is an action in JSON."""
        return self.action(self.local.parse_action(text))

    def read_reset(self, reply: Reply) -> Outcome:
        """What the server says when it is ready."""
        self._messages = 0
        ready = reply.observation.get("metadata", {}).get("message")
        return self._scored(ready or as_text(reply.observation), reply, message="")

    def read_step(self, reply: Reply) -> Outcome:
        """The tool's result. What it made of bad arguments is the model's mistake, a broken line is not."""
        said = reply.observation
        if error := said.get("error"):
            if error.get("error_type") in ("transport_error", "timeout"):
                raise WorldError(f"{said.get('tool_name')}: {error.get('message')}")
            return Outcome(str(error.get("message")), self.total, bool(reply.done), mistake="call")
        text = _result(said.get("result"))
        self._messages += 1
        return self._scored(text, reply, message=text)

    def _scored(self, text: str, reply: Reply, *, message: str) -> Outcome:
        """Kind echo pays for the newest message, whatever the server does."""
        metrics = server_reward(reply.reward)
        if isinstance(self.local, Local):
            self.total = PER_CHARACTER * min(len(message), self.local.longest)
            metrics |= {"messages": float(self._messages), "characters": float(len(message))}
        else:
            self.add(reply.reward)
        return Outcome(text, self.total, bool(reply.done), metrics=metrics)


class OldEcho(Echo):
    """The echo server before MCP."""

    title = "EchoAction"

    def action(self, call: ToolCall) -> dict[str, Any]:
        """The message alone."""
        return super().action(call) if call.name == "act" else dict(call.arguments)

    def read_reset(self, reply: Reply) -> Outcome:
        """What the server says when it is ready."""
        self._messages = 0
        return self._scored(_echoed(reply), reply, message="")

    def read_step(self, reply: Reply) -> Outcome:
        """The message again."""
        self._messages += 1
        return self._scored(_echoed(reply), reply, message=_echoed(reply))


def _echoed(reply: Reply) -> str:
    try:
        return str(reply.observation["echoed_message"])
    except (KeyError, TypeError) as error:
        raise WorldError(f"no reply of an echo server: {reply.observation!r:.200}") from error


def _result(result: Any) -> str:
    """The text of an MCP result, which holds it in parts, or whatever else a tool returned."""
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        return "\n".join(part["text"] for part in result["content"] if "text" in part)
    return as_text("" if result is None else result)
