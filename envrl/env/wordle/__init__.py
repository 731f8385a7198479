"""Wordle as text: the game, its words, what feedback says, and a solver."""

from envrl.env.wordle.game import Wordle

__all__ = ["Wordle"]
