"""Solvers that know no more than the model: they read the conversation."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nltk_data import SECRETS

from envrl.env import ToolCall
from envrl.env.catch import BALL, COLUMNS, PADDLE, ROWS
from envrl.env.sudoku.board import where
from envrl.env.sudoku.puzzle import read
from envrl.env.wordle.solver import choose, fitting
from envrl.rollout.trajectory import Episode

Messages = list[dict[str, Any]]
Policy = Callable[[Messages], ToolCall | str]
"""What to do or say next, from what the model has been told so far and nothing else."""
Play = Callable[..., list[Episode]]
"""The fixture `play`."""

_FEEDBACK = re.compile(r"You submitted \[(\w+)\]\.\nFeedback:\n.*\n([GYX](?: [GYX])*)\n")
_ROW = re.compile(r"^R[1-9] (.*)$", re.MULTILINE)


def says(*lines: str) -> Policy:
    """Says one line per turn, whatever it is told."""
    return lambda messages: lines[sum(message["role"] == "assistant" for message in messages)]


def wordle(messages: Messages) -> ToolCall:
    """A word that fits all feedback."""
    history = [(guess, marks.replace(" ", "")) for guess, marks in _FEEDBACK.findall(_told(messages))]
    return ToolCall("guess", {"word": choose(fitting(SECRETS, history))})


def sudoku(messages: Messages) -> ToolCall:
    """The first empty cell of the newest board."""
    rows = _ROW.findall(_told(messages))[-9:]
    board = "".join(re.findall(r"[1-9.]", "".join(rows)))
    cell = board.index(".")
    row, col = where(cell)
    return ToolCall("place", {"row": row, "col": col, "number": read(board).solution[cell]})


def catch(messages: Messages) -> ToolCall:
    """Towards the ball."""
    cells = re.findall(rf"[{BALL}{PADDLE}.](?=[ \n]|$)", messages[-1]["content"])[-ROWS * COLUMNS :]
    side = cells.index(BALL) % COLUMNS - cells.index(PADDLE) % COLUMNS
    return ToolCall("move", {"direction": "left" if side < 0 else "right"}) if side else ToolCall("stay")


def _told(messages: Messages) -> str:
    return "\n".join(message["content"] for message in messages if message["role"] != "assistant")
