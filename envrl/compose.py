"""The only door to a RunSpec: Hydra composes, the result becomes plain data, pydantic and the rules judge it.

The package re-exports `compose`, and `import envrl` must stay light: Hydra and pydantic are therefore
imported inside the functions here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envrl.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from envrl.spec import RunSpec

_PLAIN = re.compile(r"([A-Za-z_][^=@/]*)=")


def compose(overrides: Sequence[str] = ()) -> RunSpec:
    """The spec of a composition, from the same overrides as the command line takes.

    Raises ConfigError with one line per problem.
    """
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from envrl.explain import is_refusal, refusal
    from envrl.paths import CONF, register_recipes

    register_recipes()
    # Hydra knows one application per process; this one gives way to a caller's own and back.
    outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF), job_name="envrl"):
            cfg = hydra.compose("config", [open_key(override) for override in overrides])
    except Exception as error:  # Hydra mixes error types; those that are no refusal pass through
        if is_refusal(error):
            raise ConfigError(refusal(error)) from error
        raise
    finally:
        GlobalHydra.instance().hydra = outer
    return load(cfg)


def load(cfg: DictConfig) -> RunSpec:
    """Judges a composition. Raises ConfigError with one line per problem."""
    from envrl.rules import broken

    spec = _validated(_plain(cfg))
    if lines := list(broken(spec)):
        raise ConfigError("\n".join(lines))
    return spec


def open_key(override: str, *, known_only: bool = False) -> str:
    """`key=value` as Hydra's `++key=value`, unless it chooses a group's option or is Hydra's own.

    Hydra would stop at the first key that the YAML files do not spell out; this way the spec judges
    them all, and `env.<key>` and dictionaries take any key that they may have. `known_only` leaves keys
    that the spec does not have to Hydra.
    """
    from envrl.explain import allows
    from envrl.paths import groups

    match = _PLAIN.match(override)
    if not match or match[1] in groups() or match[1].partition(".")[0] == "hydra":
        return override
    return override if known_only and not allows(match[1].split(".")) else f"++{override}"


def _plain(cfg: DictConfig) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        path = error.full_key
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}; mend: {path}=...") from error


def _validated(data: dict[str, Any]) -> RunSpec:
    """Plain data as a spec; what is missing, stray or ill-typed is raised together."""
    from pydantic import ValidationError

    from envrl.explain import problems
    from envrl.spec import RunSpec

    lines = {path: f"{path}: no value; mend: {path}=..." for path in _missing(data)}
    lines |= _stray(data)
    unnamed = {"name": data.get("name") or "-", "output_dir": data.get("output_dir") or "-"}
    try:
        spec = RunSpec.model_validate({**data, **unnamed})
    except ValidationError as error:
        found = [(p, line) for p, line in problems(error, data) if not _covered(p, lines)]
        raise ConfigError("\n".join([*lines.values(), *(line for _, line in found)])) from None
    if lines:
        raise ConfigError("\n".join(lines.values()))
    name = spec.name if data.get("name") else _name(spec)
    output_dir = spec.output_dir if data.get("output_dir") else Path("outputs") / name
    return spec.model_copy(update={"name": name, "output_dir": output_dir})


def _missing(data: Any, path: str = "") -> list[str]:
    """The paths that hold `???`."""
    if isinstance(data, dict):
        return [m for key, value in data.items() for m in _missing(value, f"{path}.{key}".lstrip("."))]
    return [path] if data == "???" else []


def _stray(data: dict[str, Any]) -> dict[str, str]:
    """Settings of environments that are not in the mixture: they have values, but no `kind`."""
    from envrl.paths import options

    env = data.get("env")
    if not isinstance(env, dict):
        return {}
    chosen = [key for key, value in env.items() if isinstance(value, dict) and "kind" in value]
    lines = {}
    for key in map(str, env.keys() - set(chosen)):
        near = get_close_matches(key, chosen, 1)
        mend = f"env.{key}.kind={'|'.join(options('env'))}"
        if key in options("env"):
            mend = f"env=[{','.join([*chosen, key])}]"
        hint = f"did you mean env.{near[0]}?" if near else f"add it: {mend}"
        lines[f"env.{key}"] = f"env.{key}: set, but not chosen; {hint}"
    return dict(sorted(lines.items()))


def _covered(path: str, lines: dict[str, str]) -> bool:
    return any(path == known or path.startswith(f"{known}.") for known in lines)


def _name(spec: RunSpec) -> str:
    """Equal on all ranks and in all repetitions of a run."""
    name = f"{'+'.join(spec.env)}-{spec.model.label}-{spec.seed}-{spec.digest[:6]}"
    return re.sub(r"[^\w.+-]", "_", name)
