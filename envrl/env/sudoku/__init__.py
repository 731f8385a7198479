"""Sudoku: boards of one solution, the game around them, and how two guides score it."""

from envrl.env.sudoku.game import Sudoku

__all__ = ["Sudoku"]
