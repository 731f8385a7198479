"""The words: secrets, and guesses that are accepted. `data/README.md` says where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from envrl.env.wordle.solver import Solver
from envrl.seeds import derive

FEWEST = 50
"""Fewer secrets would be no game."""


@dataclass(frozen=True)
class Words:
    """One choice of words, shared by all episodes that play with it."""

    secrets: tuple[str, ...]
    """The most common first."""
    accepted: tuple[str, ...]
    """All that may be guessed; the secrets come first."""
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    known: frozenset[str]
    """The accepted ones, to look up in."""
    solver: Solver


@cache
def load(words: int | None, held_out: float) -> Words:
    """The first `words` secrets, which are then all that is accepted, or every word there is.

    Raises ValueError where there are not so many.
    """
    secrets, others = _read("secrets"), _read("guesses")
    if words is not None:
        if not FEWEST <= words <= len(secrets):
            raise ValueError(f"words: from {FEWEST} to {len(secrets)}, or null for all, got {words}")
        secrets, others = secrets[:words], ()
    train, evaluated = _split(secrets, held_out)
    accepted = secrets + others
    return Words(secrets, accepted, train, evaluated, frozenset(accepted), Solver(secrets))


def _split(secrets: tuple[str, ...], held_out: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The secrets to train on and those held out, chosen by hash; all of them twice where the share is 0."""
    if not held_out:
        return secrets, secrets
    count = min(max(1, round(held_out * len(secrets))), len(secrets) - 1)
    out = set(sorted(secrets, key=lambda word: derive("wordle", word))[:count])
    return tuple(w for w in secrets if w not in out), tuple(w for w in secrets if w in out)


@cache
def _read(name: str) -> tuple[str, ...]:
    return tuple((files("envrl.env.wordle") / "data" / f"{name}.txt").read_text("utf-8").split())
