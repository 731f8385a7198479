"""Small classes for TRL, each with a habit of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Literal


class Base:
    """Its tools are inherited; `_hidden` and the properties are none."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.threads: set[int] = set()

    def reset(self, **row: Any) -> str | None:
        self.rows.append(row)
        return None

    def look(self) -> str:
        """Look around."""
        self.threads.add(threading.get_ident())
        return "a room"

    def _hidden(self) -> None: ...

    @property
    def weather(self) -> str:
        return "fine"


class Careful(Base):
    """Its constructor takes what has a default, its reward comes from get_reward, `done` is a tool."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.depth = depth
        self.reward = 99.0
        self.asked = 0

    @staticmethod
    def add(a: int, b: int = 1) -> int:
        """Add.

        Args:
            a: One.
            b: Other.
        """
        return a + b

    def done(self) -> str:
        """Says that it is done."""
        return "done is a tool here"

    def get_reward(self) -> float:
        self.asked += 1
        return 0.25 * self.depth


class Broken(Base):
    """Breaks, or says what is wrong."""

    def look(self, how: Literal["well", "badly"] = "well") -> str:
        """Look around.

        Args:
            how: The way.
        """
        if how == "badly":
            raise ValueError("look well")
        raise RuntimeError("the lamp is broken")


class Async(Base):
    """All its methods are async."""

    async def reset(self, **row: Any) -> str | None:  # type: ignore[override]
        await asyncio.sleep(0)
        return "hello"

    async def look(self) -> str:  # type: ignore[override]
        """Look around."""
        await asyncio.sleep(0)
        self.threads.add(threading.get_ident())
        return "an async room"

    async def get_reward(self) -> float:
        await asyncio.sleep(0)
        return 0.5

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


class Picky(Base):
    """Needs a column."""

    def reset(self, secret: str, prompt: str = "") -> str | None:
        return f"psst {secret}"


class Undocumented(Base):
    def peek(self) -> str:
        return "nothing"


class Untyped(Base):
    def peek(self, where) -> str:  # type: ignore[no-untyped-def]
        """Look around.

        Args:
            where: A place.
        """
        return "nothing"


class Unexplained(Base):
    def peek(self, where: str) -> str:
        """Look around."""
        return "nothing"


class Unresolved(Base):
    def peek(self, where: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
        """Look around.

        Args:
            where: A place.
        """
        return "nothing"


def deep() -> Careful:
    """A factory, as TRL takes them too."""
    return Careful(depth=3)


def mistaken() -> object:
    return object()
