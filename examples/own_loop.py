"""A loop of your own: an agent in another process drives the episode, and envrl trains what it samples.

    python -m envrl scheduler.target=examples/own_loop.py:AgentProcess env=wordle model.warm_start=null

Any program that owns its loop fits in here. This one (agent.py) writes one JSON object per line on its
standard output and reads one from its standard input:

    envrl → {"messages": [...], "tools": [...]}              the task, once
    agent → {"complete": [...]}                              all messages of its conversation
    envrl → {"text": "..."}                                  the model's turn
    agent → {"call": {"name": "...", "arguments": {...}}}    a tool of the environment
    envrl → {"result": "...", "done": false}
    agent → {"finish": true}

Messages that only grew cost nothing but their new tokens; an agent that rewrites its history starts another
transcript. The process dies with its episode, and an episode whose process dies ends as `error`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envrl.env import Face, ToolCall
from envrl.errors import WorldError
from envrl.scheduler import Scheduler, answer
from envrl.stop import StopReason

if TYPE_CHECKING:
    from envrl.engine import Engine
    from envrl.rollout.trajectory import Episode

LINE_BYTES = 1 << 24


class AgentProcess(Scheduler):
    """Starts the agent, answers what it asks, and kills it."""

    face = Face.TOOL
    command = (sys.executable, str(Path(__file__).with_name("agent.py")))

    async def run(self, episode: Episode, engine: Engine) -> StopReason:
        """Plays one episode; the agent decides what happens next."""
        await episode.begin(self.face)
        agent = await asyncio.create_subprocess_exec(*self.command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES)
        try:
            await _tell(agent, {"messages": episode.messages, "tools": episode.tool_schemas})
            return await self._serve(agent, episode, engine)
        finally:
            await _kill(agent)

    async def _serve(self, agent: Process, episode: Episode, engine: Engine) -> StopReason:
        while True:
            match await _hear(agent):
                case {"complete": messages}:
                    if len(episode.turns) == episode.limits.max_turns:
                        return StopReason.MAX_TURNS
                    turn = await answer(episode, messages, engine, tools=True)
                    if turn is None or turn.cut:
                        return StopReason.LENGTH
                    await _tell(agent, {"text": turn.text})
                case {"call": {"name": name, "arguments": arguments}} if episode.turns:
                    result = await episode.call(ToolCall(name, arguments))
                    await _tell(agent, {"result": result, "done": episode.done})
                case {"finish": _}:
                    return StopReason.DONE if episode.done else StopReason.NO_TOOL_CALL
                case asked:
                    raise WorldError(f"the agent asked {asked!r:.200}")


async def _kill(agent: Process) -> None:
    """Not by its own method, which reaps an agent that is just ending, so that asyncio loses its status."""
    if agent.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(agent.pid, signal.SIGKILL)
    await agent.wait()


async def _tell(agent: Process, words: dict[str, Any]) -> None:
    assert agent.stdin is not None
    agent.stdin.write(json.dumps(words).encode() + b"\n")
    with suppress(ConnectionError):  # it has ended, and with which status is told where it is heard
        await agent.stdin.drain()


async def _hear(agent: Process) -> dict[str, Any]:
    assert agent.stdout is not None
    line = await agent.stdout.readline()
    if not line:
        raise WorldError(f"the agent ended with status {await agent.wait()}")
    words: dict[str, Any] = json.loads(line)
    return words
