"""Our own hosting (`python -m envrl.serve`), played with a class of ours or with kind=openenv."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envrl.env.base import Environment, ToolCall
from envrl.env.openenv.adapters import Adapter, Outcome
from envrl.env.openenv.generic import OpenEnv, as_text
from envrl.errors import WorldError

if TYPE_CHECKING:
    from envrl.env.openenv.sessions import Reply


class Envrl(Adapter):
    """Our own hosting (`python -m envrl.serve`): the server parses, scores and says who erred."""

    title = "EnvrlAction"

    def action(self, call: ToolCall) -> dict[str, Any]:
        """The call by name; with kind=openenv the model writes `{"tool": ..., "arguments": ...}` itself."""
        if isinstance(self.local, OpenEnv):
            return dict(call.arguments["action"])
        return {"tool": call.name, "arguments": dict(call.arguments)}

    def text_action(self, text: str) -> dict[str, Any]:
        """The text as it is: only the instance behind the session can parse it."""
        return {"text": text}

    def conclusion(self) -> dict[str, Any] | None:
        """For classes that have a conclusion."""
        own = type(self.local).conclude is not Environment.conclude
        return {"conclude": True} if own else None

    def read_reset(self, reply: Reply) -> Outcome:
        """With kind=openenv the rules and the tools come from the server too, else they have to be ours.

        Raises WorldError where the server plays another environment.
        """
        outcome, tools = self.read_step(reply), reply.observation.get("tools")
        if not tools:  # a server that the run started itself does not repeat them
            return outcome
        if not isinstance(self.local, OpenEnv):
            theirs, ours = sorted(tool["function"]["name"] for tool in tools), sorted(self.local.tools())
            if theirs != ours:
                what = f"the tools {', '.join(theirs)}, not {', '.join(ours)}"
                raise WorldError(f"the server plays another environment: it has {what}")
            return outcome
        rules, how = (
            reply.observation["instructions"]["tool"],
            'An action is {"tool": <name>, "arguments": {...}}.',
        )
        return replace(outcome, text=f"{rules}\n\nTools: {as_text(tools)}\n{how}\n\n{outcome.text}")

    def read_step(self, reply: Reply) -> Outcome:
        """The total is read, not added up, so that it is the in-process one to the last bit."""
        try:
            said = reply.observation
            return Outcome(
                text=said["text"],
                reward=said["total"],
                done=bool(reply.done),
                success=said["success"],
                metrics=said["metrics"],
                mistake=said["mistake"],
                extra=said["extra"],
                instructions=said["instructions"],
            )
        except (KeyError, TypeError) as error:
            raise WorldError(f"no reply of an envrl server: {reply.observation!r:.200}") from error
