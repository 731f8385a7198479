"""Wordle: find the secret word by what each guess reveals.

Feedback, invalid moves and their wording are TextArena's, the three rewards those of TRL's guide.
"""

from __future__ import annotations

import re
from random import Random
from typing import Annotated, Any

from pydantic import Field

from envrl.env.base import Environment, Face, ToolCall, tool
from envrl.env.wordle.feedback import LETTERS, Guess, feedback, knowledge, spaced
from envrl.env.wordle.scoring import GUESSES, scored
from envrl.env.wordle.solver import fitting
from envrl.env.wordle.words import load
from envrl.seeds import is_held_out

_BRACKETED = re.compile(r"\[(\w+)\]")
_FORMAT = "You tried submitting a word in the wrong format. Please make sure to use squared brackets."


class Wordle(Environment):
    """A secret of five letters, drawn by the seed; six guesses; the second invalid one in a row ends it.

    `words` leaves only so many of the most common words, to guess as to be guessed, for models that
    have to learn to spell. `held_out` is the share of the secrets that is never trained on; at 0 all
    are, and evaluated too.
    """

    def __init__(
        self, *, words: int | None = None, held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    ) -> None:
        self._words = load(words, held_out)
        self._secret = ""
        self._history: tuple[Guess, ...] = ()
        self._invalid_in_a_row = 0

    def instructions(self, face: Face) -> str:
        """The rules; short, because the tiny model pays for every token."""
        rules = (
            f"Find the secret {LETTERS}-letter word in {GUESSES} guesses. Each letter of a guess is marked "
            "G (right), Y (elsewhere in the word) or X (not in the word).\n"
        )
        if face is Face.TOOL:
            return rules + "Call guess once per turn."
        return rules + "Answer with your word in square brackets, as [apple], once per turn."

    def tasks(self, *, held_out: bool) -> list[dict[str, Any]]:
        """One row per secret of either side."""
        return [{"secret": word} for word in (self._words.held_out if held_out else self._words.train)]

    def reset(self, *, seed: int | None = None, secret: str | None = None, **row: Any) -> str:
        """Draws the secret of the seed, from those of its side, or takes the row's own."""
        if secret is None:
            evaluated = seed is not None and is_held_out(seed)
            secret = Random(seed).choice(self._words.held_out if evaluated else self._words.train)
        elif not (isinstance(secret, str) and re.fullmatch(f"[A-Za-z]{{{LETTERS}}}", secret)):
            raise ValueError(f"secret: {LETTERS} letters are needed, got {secret!r}")
        self._secret, self._history, self._invalid_in_a_row = secret.lower(), (), 0
        self.done, self.success = False, False
        self.metrics = {"guesses": 0, "invalid_guesses": 0, "greens": 0, "ended_by_invalid": 0}
        self.reward = scored(self.metrics, won=False)
        return self._left()

    @tool
    def guess(self, word: str) -> str:
        """Guess the secret word.

        Args:
            word: An English word of five letters.
        """
        if self.done:
            raise ValueError("the episode is over")
        word = word.strip().removeprefix("[").removesuffix("]").lower()
        if objection := self._objection(word):
            raise ValueError(self._refuse(objection))
        marks = feedback(word, self._secret)
        self._history += ((word, marks),)
        self._invalid_in_a_row = 0
        self.success = word == self._secret
        self.done = self.success or len(self._history) == GUESSES
        self.metrics["guesses"] += 1
        self.metrics["greens"] = max(self.metrics["greens"], marks.count("G"))
        self.reward = scored(self.metrics, won=self.success)
        board = f"{spaced(word.upper())}\n{spaced(marks)}"
        return f"You submitted [{word}].\nFeedback:\n{board}\n{self._outcome()}"

    def parse_action(self, text: str) -> ToolCall:
        """The first bracketed word; a text without any is an invalid guess."""
        found = _BRACKETED.search(text)
        if found:
            return ToolCall("guess", {"word": found[1].lower()})
        raise ValueError("the episode is over" if self.done else self._refuse(_FORMAT))

    def format_action(self, call: ToolCall) -> str:
        """The word in brackets."""
        return f"[{call.arguments['word']}]"

    def gold_action(self) -> ToolCall:
        """A word that fits all feedback: the solver's choice, or an uncommon one where none else is left."""
        word = self._words.solver.best(self._history)
        return ToolCall("guess", {"word": word or self._uncommon()})

    def random_action(self, rng: Random) -> ToolCall:
        """Any word."""
        return ToolCall("guess", {"word": rng.choice(self._words.accepted)})

    def thought(self) -> str:
        """What the feedback says about letters and places."""
        return knowledge(self._history) if self._history else "Nothing is known yet."

    def _objection(self, word: str) -> str | None:
        """Why a guess is invalid, in TextArena's order and words."""
        if len(word) != LETTERS:
            return f"Your word must be exactly {LETTERS} letters."
        if word in [guess for guess, _ in self._history]:
            return f"You have already guessed '{word}' before. Please try a different word."
        if word not in self._words.known and word != self._secret:
            return f"'{word}' is not an English word."
        return None

    def _refuse(self, reason: str) -> str:
        """Counts an invalid guess, which may be one too many, and words the answer."""
        self.metrics["invalid_guesses"] += 1
        self._invalid_in_a_row += 1
        self.done = self._invalid_in_a_row == 2
        self.metrics["ended_by_invalid"] = int(self.done)
        self.reward = scored(self.metrics, won=False)
        next_ = "That ends the game." if self.done else "Please resubmit a valid move."
        return f"You attempted an invalid move. Reason: {reason} {next_}"

    def _outcome(self) -> str:
        if self.success:
            return "Congratulations! You guessed the word correctly!"
        return f"{self._left()} The secret word was [{self._secret}]." if self.done else self._left()

    def _left(self) -> str:
        return f"You have {GUESSES - len(self._history)} guesses left."

    def _uncommon(self) -> str:
        return fitting((*self._words.accepted, self._secret), self._history)[0]
