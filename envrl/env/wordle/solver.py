"""A solver: it guesses words that fit all feedback, of those the one that tells most of the others apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from envrl.env.wordle.feedback import LETTERS, Guess, feedback

COMPARISONS = 1000
"""How many pairs of words a choice may look at; letter counts say which words are worth it."""


class Solver:
    """Plays one list of secrets. What it worked out for one episode serves the others."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets
        self.best = lru_cache(maxsize=1 << 14)(self._best)
        self._parts = lru_cache(maxsize=1 << 9)(self._split)

    def _best(self, history: tuple[Guess, ...]) -> str | None:
        """The next guess, always the same for a history; None where no secret fits it."""
        left = self._left(history)
        return choose(left) if left else None

    def _left(self, history: tuple[Guess, ...]) -> Sequence[str]:
        """The secrets that would have given this feedback."""
        if not history:
            return self._secrets
        guess, marks = history[-1]
        return self._parts(history[:-1], guess).get(marks, ())

    def _split(self, history: tuple[Guess, ...], guess: str) -> dict[str, list[str]]:
        """What a guess makes of the secrets that are left: a list for each feedback."""
        parts: dict[str, list[str]] = {}
        for word in self._left(history):
            parts.setdefault(feedback(guess, word), []).append(word)
        return parts


def fitting(words: Sequence[str], history: Sequence[Guess]) -> tuple[str, ...]:
    """The words that would have given this feedback."""
    return tuple(w for w in words if all(feedback(guess, w) == marks for guess, marks in history))


def choose(words: Sequence[str]) -> str:
    """The word whose feedback takes the most different values over all of them; the earliest of equals."""
    common = _commonness(words)
    shortlist = sorted(words, key=common, reverse=True)[: 1 + COMPARISONS // len(words)]
    return max(shortlist, key=lambda guess: len({feedback(guess, word) for word in words}))


def _commonness(words: Sequence[str]) -> Callable[[str], int]:
    """How many of the words share a word's letters, anywhere and in their places."""
    anywhere = Counter(letter for word in words for letter in set(word))
    places = [Counter(word[place] for word in words) for place in range(LETTERS)]
    return lambda word: (
        sum(anywhere[letter] for letter in set(word))
        + sum(count[letter] for count, letter in zip(places, word, strict=True))
    )
