"""Our rewards and metrics for games that a TextArena server plays, read off what it says."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from envrl.env.base import Environment
from envrl.env.sudoku import Sudoku
from envrl.env.sudoku import scoring as rewards
from envrl.env.sudoku.board import DIGITS, Board, Move, cell_at
from envrl.env.sudoku.deduction import hints
from envrl.env.sudoku.scoring import Tally
from envrl.env.wordle import Wordle
from envrl.env.wordle.scoring import GUESSES, scored

_ATTEMPTS = re.compile(r"You have (\d+) attempts")
_MARKS = re.compile(r"^[GYX](?: [GYX])+$", re.MULTILINE)
_ROW = re.compile(r"^R[1-9] (.*)$", re.MULTILINE)
_MOVE = re.compile(r"\[(\d+)\s(\d+)\s(\d+)\]")


class Score(ABC):
    """Keeps the score of one episode: the total so far, and metrics named as our own game names them."""

    reward: float = 0.0
    metrics: dict[str, float]

    @abstractmethod
    def begin(self, rules: str, news: str) -> str:
        """Reads the first observation; returns what the model is shown of it."""

    @abstractmethod
    def after(self, said: str, text: str, *, refused: bool, done: bool, paid: float | None) -> str:
        """Counts a move, for which the server `paid`; returns the text for the model."""


def score_of(local: Environment) -> Score | None:
    """The score of a kind of ours that TextArena has too."""
    if isinstance(local, Wordle):
        return WordleScore()
    return SudokuScore(local) if isinstance(local, Sudoku) else None


class WordleScore(Score):
    """The three rewards of TRL's guide, and the metrics of its table."""

    def begin(self, rules: str, news: str) -> str:
        """The server says no more than the rules; we say how many guesses there are, as our game does."""
        found = _ATTEMPTS.search(rules)
        self._attempts = int(found[1]) if found else GUESSES
        self.metrics = {"guesses": 0, "invalid_guesses": 0, "greens": 0}
        self.reward = scored(self.metrics, won=False, allowed=self._attempts)
        return news or f"You have {self._attempts} guesses left."

    def after(self, said: str, text: str, *, refused: bool, done: bool, paid: float | None) -> str:
        """A row of marks comes with every guess but the one that wins."""
        won = done and paid == 1.0
        self.metrics["invalid_guesses" if refused else "guesses"] += 1
        rows = [row.count("G") for row in _MARKS.findall(text.partition("Feedback:")[2])]
        self.metrics["greens"] = max(self.metrics["greens"], 5 if won else 0, *rows[-1:])
        self.reward = scored(self.metrics, won=won, allowed=self._attempts)
        return text


class SudokuScore(Score):
    """The five rewards in the form that env.<key>.args.scoring names; hints where args ask for them."""

    def __init__(self, local: Sudoku) -> None:
        self._hinted = local.hints
        self._tally = Tally(local.scoring)
        self._board = Board()

    def begin(self, rules: str, news: str) -> str:
        """The board, which the games of `-train` show right after the rules."""
        news = news or rules[max(0, rules.find("Game Board:")) :]
        self._board = _board(news) or self._board
        self._initial = self._board.filled
        self.metrics = {"invalid_moves": 0}
        self._total(0.0)
        return self._shown(news)

    def after(self, said: str, text: str, *, refused: bool, done: bool, paid: float | None) -> str:
        """The server shows the board after every move that stands."""
        move = _move(said)
        empty = move is not None and not self._board.cells[cell_at(*move[:2])]
        worth = rewards.NEW if not refused else rewards.LOST if done else rewards.WARNED
        self._tally.add(move, empty=empty, valid=worth)
        self.metrics["invalid_moves"] += refused
        self._board = _board(text) or self._board
        self._total(paid or 0.0)
        return text if done else self._shown(text)

    def _total(self, paid: float) -> None:
        five = self._tally.means()
        five["progress"] = rewards.progress(self._board.filled, self._initial)
        five["correct"] = paid
        self.metrics |= {**five, "filled": self._board.filled - self._initial}
        self.reward = sum(five.values())

    def _shown(self, text: str) -> str:
        lines = hints(self._board, self._tally.moves) if self._hinted else ""
        return f"{text}\n\n{lines}" if lines else text


def _board(text: str) -> Board | None:
    """The last board in a text."""
    cells = [cell for row in _ROW.findall(text)[-9:] for cell in re.findall(r"[1-9.]", row)]
    return Board.parse("".join(cells)) if len(cells) == 81 else None


def _move(said: str) -> Move | None:
    """The move that the server takes from a text, where it names a cell and a number."""
    found = _MOVE.search(said)
    row, col, number = map(int, found.groups()) if found else (0, 0, 0)
    return (row, col, number) if {row, col, number} <= set(DIGITS) else None
