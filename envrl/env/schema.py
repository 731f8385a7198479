"""The tools of an environment as the JSON schemas that chat templates show to a model."""

from __future__ import annotations

from functools import cache
from typing import Any

from transformers.utils.chat_template_utils import (
    DocstringParsingException,
    TypeHintParsingException,
    get_json_schema,
)

from envrl.env.base import Environment, tool_names
from envrl.errors import ConfigError


def tool_schemas(environment: type[Environment]) -> list[dict[str, Any]]:
    """One schema per tool, in the order of their definition.

    Raises ConfigError where a tool lacks type hints or its Google docstring.
    """
    return [_schema(environment, name) for name in tool_names(environment)]


@cache
def _schema(environment: type[Environment], name: str) -> dict[str, Any]:
    try:
        schema = get_json_schema(getattr(environment, name))
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ConfigError(f"tool {environment.__name__}.{name}: {error}") from error
    # What a tool returns is no part of how it is called; models were not trained to read it.
    schema["function"].pop("return", None)
    return schema
