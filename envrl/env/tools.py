"""Plain functions as tools, without a game behind them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from envrl.env.base import Environment, Face, unreadable
from envrl.errors import ConfigError
from envrl.importing import load_object

Function = Callable[..., Any]


class Tools(Environment):
    """Functions by import path `package.module:name`, sync or async, with type hints and a Google docstring.

    There is no state, no text face and no reward: the dataset brings the question, a reward term scores, and
    the model ends the episode by answering. A ValueError of a function goes to the model. `blocking` gives
    each episode a thread of its own for sync functions that wait.
    """

    def __init__(
        self, *, functions: Annotated[list[str], Field(min_length=1)], blocking: bool = False
    ) -> None:
        self.blocking = blocking
        self._functions: dict[str, Function] = {}
        for path in functions:
            function = _function(path)
            if function.__name__ in self._functions:
                raise ValueError(f"functions: two are named {function.__name__}, one of them {path}")
            self._functions[function.__name__] = function

    def instructions(self, face: Face) -> str:
        """What opens a conversation where the dataset row has no messages of its own."""
        return "Answer the question. Use the tools where they help."

    def reset(self, *, seed: int | None = None, **row: Any) -> None:
        """Nothing to set up; the row is for reward terms."""

    def tasks(self, *, held_out: bool) -> list[dict[str, Any]]:
        """None of its own: the questions are the dataset's."""
        return []

    def tools(self) -> dict[str, Function]:
        """The functions by their names, in the order given."""
        return dict(self._functions)


def _function(path: str) -> Function:
    """The function at an import path. Raises ValueError where a model could not call it by keyword."""
    try:
        function = load_object(path)
    except ConfigError as error:
        raise ValueError(f"functions: {error}") from error
    if not inspect.isfunction(function):
        raise ValueError(f"functions: {path} is no function but of type {type(function).__name__}")
    if fault := unreadable(function):
        raise ValueError(f"functions: {path} {fault}")
    return function
