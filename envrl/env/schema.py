"""The tools of an environment as the JSON schemas that chat templates show to a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from transformers.utils.chat_template_utils import (
    DocstringParsingException,
    TypeHintParsingException,
    get_json_schema,
)

from envrl.env.base import Environment
from envrl.errors import ConfigError


def tool_schemas(environment: Environment) -> list[dict[str, Any]]:
    """One schema per tool, in the order of `tools()`.

    Raises ConfigError where a tool lacks type hints or its Google docstring.
    """
    return [
        _schema(name, getattr(function, "__func__", function))
        for name, function in environment.tools().items()
    ]


@cache
def _schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        schema = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ConfigError(f"tool {function.__qualname__}: {error}") from error
    schema["function"]["name"] = name
    # What a tool returns is no part of how it is called; models were not trained to read it.
    schema["function"].pop("return", None)
    return schema
