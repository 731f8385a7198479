"""Words for what Hydra and pydantic refuse: one line per problem, with the override that mends it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Any, get_args

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from yaml import YAMLError

from envrl.errors import unknown
from envrl.paths import groups, options
from envrl.spec import RunSpec

_EXAMPLES = {
    "int": "<integer>", "float": "<number>", "bool": "true|false", "string": "'\"<text>\"'",
    "list": "[...]", "dict": "{...}", "model": "{...}", "path": "<path>",
}  # fmt: skip
_UNION = re.compile(r"(dict|list)\[")
"""What pydantic puts into a path where a value may have one of several types."""


def is_refusal(error: Exception) -> bool:
    """Whether Hydra refuses the user's input; some of that it says in plain ValueErrors."""
    flags = ("Only one of --", "The --resolve", "Config group override must")
    known = isinstance(error, HydraException | OmegaConfBaseException | YAMLError)
    return known or (isinstance(error, ValueError) and str(error).startswith(flags))


def refusal(error: Exception) -> str:
    """Why Hydra could not compose: the option, key or text that it stumbled over."""
    if isinstance(error, OverrideParseException):
        return _unparsed(str(error.override).removeprefix("++"))
    text = str(error).split("\nConfig search path:")[0].strip()
    option = re.search(r"Could not (?:find|load) '(?:(.+)/)?([^/']+)'", text)
    if option and option[1] in groups():
        found = error.options if isinstance(error, MissingConfigException) and error.options else []
        return unknown(f"{option[1]}={option[2]}", option[2], found or options(option[1]))
    if text.startswith("Config group override must"):
        return f"a group takes an option's name or a list of names; groups: {', '.join(groups())}"
    cause = error.__cause__
    if cause is not None and "is not in struct" in str(cause):
        return unknown_key(str(getattr(cause, "full_key", "")).split("."))
    if cause is not None and str(cause) not in text:
        text += "\n" + str(cause).splitlines()[0]
    return text


def _unparsed(override: str) -> str:
    key, equals, value = override.partition("=")
    if not equals:
        return f"{override}: not an override; write key=value"
    quoted = value.strip("\"'").replace('"', '\\"')
    return f"{key}: cannot read {value!r}; text needs both pairs of quotes: '{key}=\"{quoted}\"'"


def problems(error: ValidationError, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(override path, line) for all that pydantic refuses in a composition."""
    for e in error.errors(include_url=False):
        if _UNION.match(str(e["loc"][-1])) and isinstance(e["input"], dict | list):
            continue  # the type that it is has judged it, too
        loc = [part for part in _untagged(e["loc"]) if part != "[key]" and not _UNION.match(str(part))]
        keys = [str(part) for part in loc if not isinstance(part, int)]
        path = ".".join(keys)
        index = "".join(f"[{part}]" for part in loc if isinstance(part, int))
        line = unknown_key(keys) if e["type"] == "extra_forbidden" else _line(path, index, e)
        yield path, line


def unknown_key(keys: Sequence[str]) -> str:
    """A key that the spec does not have; names the nearest one, be it a sibling or of another group."""
    *parents, key = keys
    above = ".".join(parents)
    if homes := [kind for kind, spec in _variants(_type_at(parents)).items() if key in spec.model_fields]:
        return f"{'.'.join(keys)}: not for this {above}; mend: {above}={'|'.join(homes)}"
    siblings = _fields(parents)
    near = [".".join([*parents, name]) for name in get_close_matches(key, siblings, 1)]
    elsewhere = [path for path in _paths(RunSpec) if path.rpartition(".")[2] == key]
    hint = " or ".join(near or elsewhere)
    known = f"did you mean {hint}?" if hint else f"known: {', '.join(siblings)}"
    return f"{'.'.join(keys)}: unknown key; {known}"


def allows(keys: Sequence[str]) -> bool:
    """Whether the spec has a place for this key."""
    *parents, key = keys
    at = _type_at(parents)
    return at is not None and (key in _fields(parents) or not (_is_spec(at) or _variants(at)))


def _line(path: str, index: str, e: Any) -> str:
    kind, context, value = e["type"], e.get("ctx", {}), e["input"]
    if kind == "missing":
        shown = "|".join(options(path)) if path in groups() else "..."
        return f"{path}: no value; mend: {path}={shown}"
    if kind == "union_tag_invalid":
        choices = re.findall(r"'([^']*)'", context["expected_tags"])
        return f"{unknown(f'{path}.kind', context['tag'], choices)}; mend: {path}={'|'.join(choices)}"
    if kind in ("enum", "literal_error"):
        found = re.findall(r"'([^']*)'|(True|False)", context["expected"])
        choices = [text or flag.lower() for text, flag in found]
        mend = f"[{'|'.join(choices)}, ...]" if index else "|".join(choices)
        return f"{unknown(path + index, value, choices)}; mend: {path}={mend}"
    if kind == "too_short":
        return f"{path}: must not be empty; mend: {path}=[...]"
    bound = context.get("ge", context.get("le"))
    example = _EXAMPLES.get(kind.split("_")[0], "...") if bound is None else bound
    example = f"[{example}, ...]" if index else example
    says = e["msg"].replace("Input should be", "must be").replace("Input should", "must")
    return f"{path}{index}: {says} (got {_short(value)}); mend: {path}={example}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _untagged(loc: tuple[int | str, ...]) -> list[int | str]:
    """A path without the `kind` that pydantic puts after a group with variants."""
    keys: list[int | str] = []
    for part in loc:
        variants = _variants(_type_at([str(key) for key in keys if not isinstance(key, int)]))
        if part not in variants:
            keys.append(part)
    return keys


def _variants(at: Any) -> dict[str, type[BaseModel]]:
    """The specs among which a group's `kind` chooses; none for anything else."""
    specs = [arg for arg in get_args(at) if _is_spec(arg) and "kind" in arg.model_fields]
    return {kind: spec for spec in specs for kind in get_args(spec.model_fields["kind"].annotation)}


def _is_spec(at: Any) -> bool:
    return isinstance(at, type) and issubclass(at, BaseModel)


def _type_at(keys: Sequence[str]) -> Any:
    """The type that the spec has at a path: a Spec, or any other type; None where it has nothing."""
    at: Any = RunSpec
    for key in keys:
        if specs := [at] if _is_spec(at) else list(_variants(at).values()):
            fields = (spec.model_fields.get(key) for spec in specs)
            at = next((field.annotation for field in fields if field is not None), None)
        else:
            at = next(iter(get_args(at)[1:]), None)  # the values of a dict
        inner = [arg for arg in get_args(at) if arg is not NoneType]
        at = inner[0] if NoneType in get_args(at) and len(inner) == 1 else at
    return at


def _fields(keys: Sequence[str]) -> list[str]:
    at = _type_at(keys)
    specs = [at] if _is_spec(at) else _variants(at).values()
    return list(dict.fromkeys(name for spec in specs for name in spec.model_fields))


def _paths(spec: type[BaseModel], above: str = "") -> Iterator[str]:
    """The dotted paths of all fields."""
    for name in spec.model_fields:
        path = f"{above}{name}"
        yield path
        inner = _type_at(path.split("."))
        if _is_spec(inner):
            yield from _paths(inner, f"{path}.")
