"""What a guess reveals, one mark per letter: G right, Y elsewhere in the word, X not in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

LETTERS = 5

Guess = tuple[str, str]
"""A guess and its feedback, such as ("crane", "XXXGG")."""


def feedback(guess: str, secret: str) -> str:
    """The marks of a guess: greens first, then yellows from left to right while letters remain."""
    marks = ["G" if mine == its else "X" for mine, its in zip(guess, secret, strict=True)]
    left = [its for mine, its in zip(guess, secret, strict=True) if mine != its]
    for place, letter in enumerate(guess):
        if marks[place] == "X" and letter in left:
            left.remove(letter)
            marks[place] = "Y"
    return "".join(marks)


def spaced(letters: Sequence[str]) -> str:
    """A row of cells."""
    return " ".join(letters)


def knowledge(history: Sequence[Guess]) -> str:
    """What can be read off the feedback so far, in three rows.

    Yellow are the letters whose place is not known yet, gray those that are not in the word.
    """
    places = ["_"] * LETTERS
    least: Counter[str] = Counter()
    tried: dict[str, None] = {}
    for guess, marks in history:
        found = [letter for letter, mark in zip(guess, marks, strict=True) if mark != "X"]
        least |= Counter(found)
        tried.update(dict.fromkeys(guess))
        places = [new if mark == "G" else old for new, mark, old in zip(guess, marks, places, strict=True)]
    yellow = (least - Counter(places)).elements()
    gray = [letter for letter in tried if not least[letter]]
    rows = {"Green": places, "Yellow": list(yellow), "Gray": gray}
    return "\n".join(f"{name}: {spaced(row or '-').upper()}" for name, row in rows.items())
