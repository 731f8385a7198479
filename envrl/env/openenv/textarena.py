"""TextArena's games behind its OpenEnv server: Wordle, Sudoku and others for one player.

The server repeats the whole transcript in every reply, the model's own words included, and calls itself
`[GAME]`. The model is shown what is new, without the echo and the tag: what our own games say.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from envrl.env.base import Environment, ToolCall
from envrl.env.openenv.adapters import Outcome
from envrl.env.openenv.foreign import Foreign, server_reward
from envrl.env.openenv.generic import json_action
from envrl.env.openenv.scores import score_of
from envrl.errors import WorldError

if TYPE_CHECKING:
    from envrl.env.openenv.sessions import Reply

_GAME = re.compile(r"(?:^|\n)\[GAME\] ")
_REFUSED = "You attempted an invalid move."
_WON = "You won."
_ENDED = f"{_REFUSED} It was the second in a row, which ends the game."


class TextArena(Foreign):
    """A game is won if its last reward is 1; less is also paid where invalid moves ended it."""

    title = "TextArenaAction"

    def __init__(self, local: Environment) -> None:
        super().__init__(local)
        self._score = score_of(local)
        self._transcript = ""
        self._said: str | None = None
        self._in_words = False

    def action(self, call: ToolCall) -> dict[str, Any]:
        """The words that stand for the call, brackets included."""
        if call.name == "act":
            return self._sent(super().action(call), in_words=False)
        return self._sent({"message": self.local.format_action(call)}, in_words=False)

    def text_action(self, text: str) -> dict[str, Any]:
        """The text as it is, for the server to find the brackets in, unless args say how to parse it."""
        asked = self.to_action is not json_action
        return self._sent(self.to_action(text) if asked else {"message": text}, in_words=True)

    def read_reset(self, reply: Reply) -> Outcome:
        """The rules are left out for a kind of ours, which has its own."""
        self._transcript, self._said = "", None
        rules, *news = self._news(reply) or [""]
        if self._score is None:
            return Outcome("\n".join([rules, *news]), self.add(reply.reward), bool(reply.done), False)
        text = self._score.begin(rules, "\n".join(news))
        return Outcome(text, self._score.reward, bool(reply.done), False, self._score.metrics)

    def read_step(self, reply: Reply) -> Outcome:
        """A refused move is the model's mistake, also where the server passes over it in silence."""
        text, done = "\n".join(self._news(reply)), bool(reply.done)
        won = done and reply.reward == 1.0
        silence = not text and not won and (done or self._score is not None)
        refused = silence or text.startswith(_REFUSED)
        metrics = {**server_reward(reply.reward), "ended_by_invalid": float(done and refused and not won)}
        text = text or (_WON if won else _ENDED if done else _REFUSED if refused else "")
        reward = self.add(reply.reward)
        if self._score is not None:
            text = self._score.after(self._said or "", text, refused=refused, done=done, paid=reply.reward)
            reward, metrics = self._score.reward, {**self._score.metrics, **metrics}
        return Outcome(text, reward, done, won, metrics, self._mistake(text) if refused else None)

    def _mistake(self, text: str) -> Literal["parse", "call"]:
        return "parse" if self._in_words and " format" in text else "call"

    def _sent(self, action: dict[str, Any], *, in_words: bool) -> dict[str, Any]:
        self._said, self._in_words = str(action.get("message", "")), in_words
        return action

    def _news(self, reply: Reply) -> list[str]:
        """What the game said since the last reply, message by message.

        The model's own words are cut off before anything is read: it might speak as if it were the game.
        """
        try:
            transcript = "\n".join(message["content"] for message in reply.observation["messages"])
        except (KeyError, TypeError) as error:
            raise WorldError(f"no reply of a TextArena server: {reply.observation!r:.200}") from error
        new = _after(self._transcript, transcript)
        self._transcript = transcript
        if self._said is not None:
            new = re.sub(rf"\A\s*\[(GAME|Player( \d+)?)\] {re.escape(_echo(self._said))}", "", new)
        return [said for part in _GAME.split(new) if (said := part.strip("\n").removeprefix(" "))]


def _after(earlier: str, transcript: str) -> str:
    """What is new. In `-train` games the transcript does not just grow: there, equal paragraphs are old."""
    if transcript.startswith(earlier):
        return transcript[len(earlier) :]
    old, new = earlier.split("\n\n"), transcript.split("\n\n")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
    return "\n\n".join(new[len(list(same)) :])


def _echo(said: str) -> str:
    """How the transcript has the model's words: in brackets where it used none, and without players' tags."""
    bracketed = said if "[" in said or "]" in said else f"[{said}]"
    return bracketed.replace("[Player]", "").replace("[GAME]", "")
