from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from envrl.env import Environment, make
from envrl.env.base import checked_arguments, has_solver
from envrl.env.host import Host
from envrl.env.schema import tool_schemas
from envrl.env.tools import Tools
from envrl.errors import ConfigError

ADD, MULTIPLY = "envrl.env.arithmetic:add", "envrl.env.arithmetic:multiply"
MINE = '''
import asyncio
import threading

class Thing: ...

def bare(a: int) -> int:
    return a

def untyped(a, b: int = 1) -> int:
    """Think of a number."""

def add(a: int) -> int:
    """Add.

    Args:
        a: A number.
    """
    return a

def silent(a: int) -> int:
    """Keep it."""
    return a

def root(x: float) -> float:
    """Take the square root.

    Args:
        x: Any number that is not negative.
    """
    if x < 0:
        raise ValueError("x must not be negative")
    return x**0.5

def thread() -> str:
    """Name the thread."""
    return threading.current_thread().name

async def later(word: str) -> str:
    """Say a word later.

    Args:
        word: What to say.
    """
    await asyncio.sleep(0)
    return word
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_functions.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "my_functions"


def ask(environment: Environment, name: str, **arguments: Any) -> Any:
    """What a call gives, run as an episode runs it."""

    async def call() -> Any:
        host, tool = Host(environment), environment.tools()[name]
        try:
            return await host.call(tool, 5, **checked_arguments(tool, arguments))
        finally:
            await host.close()

    return asyncio.run(call())


def test_functions_are_the_tools() -> None:
    tools = Tools(functions=[MULTIPLY, ADD])
    assert tools.reset(seed=1, question="?", answer=12) is None  # type: ignore[func-returns-value]
    assert list(tools.tools()) == ["multiply", "add"]
    assert ask(tools, "add", a=2, b=3) == 5
    assert ask(tools, "multiply", a=2, b=3) == 6
    assert (tools.reward, tools.done, tools.success, tools.metrics) == (None, False, None, {})


def test_functions_have_schemas() -> None:
    add, _ = (schema["function"] for schema in tool_schemas(Tools(functions=[ADD, MULTIPLY])))
    assert (add["name"], add["description"]) == ("add", "Add two numbers.")
    assert add["parameters"]["properties"]["a"] == {"type": "integer", "description": "The first number."}
    assert add["parameters"]["required"] == ["a", "b"]


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ValueError, match="b: missing"):
        ask(Tools(functions=[ADD]), "add", a=2)
    with pytest.raises(ValueError, match="a: .*got 'x'"):
        ask(Tools(functions=[ADD]), "add", a="x", b=1)


def test_a_functions_own_refusal_reaches_the_model(mine: str) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        ask(Tools(functions=[f"{mine}:root"]), "root", x=-1)


def test_functions_may_be_async_or_block(mine: str) -> None:
    functions = [f"{mine}:later", f"{mine}:thread"]
    here = threading.current_thread().name
    assert ask(Tools(functions=functions), "later", word="so") == "so"
    assert ask(Tools(functions=functions, blocking=True), "later", word="so") == "so"
    assert ask(Tools(functions=functions), "thread") == here
    assert ask(Tools(functions=functions, blocking=True), "thread") != here


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        ([], "functions: .*at least 1 item"),
        (["nowhere:f"], "functions: cannot import nowhere"),
        (["envrl.env.arithmetic:ad"], "did you mean add"),
        (["envrl.env.arithmetic"], "package.module:Name"),
        (["my_functions:Thing"], "my_functions:Thing is no function but of type type"),
        (["my_functions:bare"], "my_functions:bare has no docstring"),
        (["my_functions:untyped"], "my_functions:untyped has no type hint for a;"),
        (["my_functions:silent"], "my_functions:silent has no line under Args: in its docstring for a;"),
        ([ADD, "my_functions:add"], "two are named add"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(mine: str, functions: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"env.tools.args: .*{reason}.*mend: env.tools.args"):
        make("tools", functions=functions)


def test_there_is_nothing_to_solve_and_no_text_face() -> None:
    assert not has_solver(Tools)
    with pytest.raises(NotImplementedError, match="scheduler=tool_calling"):
        Tools(functions=[ADD]).parse_action("2 + 3")
