"""What a spec must hold across its fields: each rule takes a RunSpec and yields a line per problem.

A line says what is wrong, the value, and the override that mends it. Nothing heavy is imported here,
apart from what the user's own modules import.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from envrl.addresses import is_address
from envrl.engine.vllm import settings as vllm_settings
from envrl.env import CUSTOM, build, environment_class, kinds
from envrl.env.base import Environment, has_solver, unreadable
from envrl.env.compat.swift.adapter import SwiftEnvironment
from envrl.env.openenv.adapters import ADAPTERS, AUTO
from envrl.errors import ConfigError, unknown
from envrl.grpo import settings as grpo_settings
from envrl.importing import load_plugin
from envrl.launch import world_size
from envrl.reward import resolve
from envrl.rollout.rows import faults, misfit
from envrl.rollout.tasks import mixture
from envrl.scheduler import SwiftScheduler, scheduler_class
from envrl.scheduler.swift import unfit
from envrl.spec import Backend, EnvSpec, RunSpec, SchedulerKind, SchedulerSpec, Stage

_BAD_ROWS = 3  # of a dataset that are shown; one mistake often spoils every row
_ORDER = [Stage.CHECK, Stage.WARM_START, Stage.TRAIN, Stage.REPORT]
_SWEEP = {"retries": 0, "objective": "success_rate", "dry_run": False}


def broken(spec: RunSpec) -> Iterator[str]:
    """All broken rules; plugins are imported first, since they may bring what the others look for."""
    for rule in (
        _plugins,
        _names,
        _unbuilt,
        _stages,
        _environments,
        _scheduler,
        _rewards,
        _model,
        vllm_settings.broken,
        _grpo,
        _checkpoint,
    ):
        yield from rule(spec)


def _plugins(spec: RunSpec) -> Iterator[str]:
    for plugin in spec.plugins:
        try:
            load_plugin(plugin)
        except ConfigError as error:
            yield f"plugins: {error}; mend: plugins=[module or file.py]"


def _names(spec: RunSpec) -> Iterator[str]:
    if spec.name in (".", "..") or re.search(r"[/\\\0]", spec.name):
        yield f"name: must be one folder name (got {spec.name!r}); mend: name=..., or output_dir=<path>"
    if spec.output_dir.exists() and not spec.output_dir.is_dir():
        yield f"output_dir: a file is there (got {str(spec.output_dir)!r}); mend: output_dir=<new folder>"
    if spec.resume not in ("auto", "never") and not (Path(spec.resume) / "trainer.pt").is_file():
        wrong = unknown("resume", spec.resume, ["auto", "never"])
        yield f"{wrong}; no checkpoint of training is there either; mend: resume=auto|never|<.../step-N>"


def _unbuilt(spec: RunSpec) -> Iterator[str]:
    """Names that are agreed on, but do not work yet."""
    grpo, sweep = spec.grpo, spec.sweep.model_dump()
    trackers = [tracker for tracker in spec.tracker if tracker != "local"]
    refused = {
        "scheduler=harness": spec.scheduler.kind is SchedulerKind.HARNESS and "scheduler=tool_calling",
        f"grpo.staleness={grpo.staleness}": grpo.staleness > 0 and "grpo.staleness=0",
        f"tracker=[{','.join(trackers)}]": bool(trackers) and "tracker=[local]",
    }
    for key, env in spec.env.items():
        path = f"env.{key}.scheduler"
        refused[f"{path}={env.scheduler}"] = env.scheduler is SchedulerKind.HARNESS and f"{path}=tool_calling"
    for name, value in _SWEEP.items():
        refused[f"sweep.{name}={sweep[name]}"] = sweep[name] != value and f"sweep.{name}={value}".lower()
    yield from (f"{what}: not built yet; mend: {mend}" for what, mend in refused.items() if mend)


def _stages(spec: RunSpec) -> Iterator[str]:
    once = [stage for stage in spec.stages if stage is not Stage.EVALUATE]
    shown = f"got [{','.join(spec.stages)}]"
    for stage in sorted({stage for stage in once if once.count(stage) > 1}):
        yield f"stages: {stage} stands more than once ({shown}); mend: stages=[...] with one {stage}"
    order = sorted(set(once), key=_ORDER.index)
    if list(dict.fromkeys(once)) != order:
        yield f"stages: the order is {', '.join(order)} ({shown}); mend: stages=[{','.join(order)}]"
    if Stage.REPORT in spec.stages and spec.stages[-1] is not Stage.REPORT:
        yield f"stages: report comes last ({shown}); mend: move report to the end of stages=[...]"


def _environments(spec: RunSpec) -> Iterator[str]:
    built: dict[str, Environment] = {}
    for key, env in spec.env.items():
        if not re.fullmatch(r"[\w.-]+", key):
            yield f"env: {key!r} is no name for an environment; mend: env.<letters, digits, _ . ->={{...}}"
        yield from _backend(key, spec)
        try:
            _judge_class(key, env)
            built[key] = build(key, env)
        except ConfigError as error:
            yield str(error)
            continue
        yield from _face(key, spec, built[key])
    if len(built) == len(spec.env):  # whose a row is can be said of a whole mixture alone
        for key, environment in built.items():
            yield from _tasks(key, spec, environment)
    wants_solver = Stage.WARM_START in spec.stages and spec.model.warm_start is not None
    if wants_solver and built and not any(has_solver(type(e)) for e in built.values()):
        yield (
            f"stages: warm_start needs an environment with a solver, and {', '.join(built)} "
            f"has none; mend: model.warm_start=null"
        )


def _backend(key: str, spec: RunSpec) -> Iterator[str]:
    """What a backend needs, and settings that belong to another one."""
    path, env, scheduler = f"env.{key}", spec.env[key], spec.scheduler_of(key)
    remote = {Backend.URL: "url", Backend.DOCKER: "image"}
    for backend, field in remote.items():
        value = getattr(env, field)
        if env.backend is backend and value is None:
            yield f"{path}.{field}: missing for backend={backend}; mend: {path}.{field}=..."
        if env.backend is not backend and value is not None:
            shown = f"{path}.backend is {env.backend} (got {value!r})"
            yield f"{path}.{field}: {shown}; mend: {path}.backend={backend}, or {path}.{field}=null"
    if env.url is not None and not is_address(env.url, "https?|wss?"):
        must = "must be http:// or https://, a host, and a port below 65536 if any"
        yield f"{path}.url: {must} (got {env.url!r}); mend: {path}.url=http://..."
    choices = [AUTO, *ADAPTERS] if env.backend in remote else [AUTO]
    if env.adapter not in choices:
        line = unknown(f"{path}.adapter", env.adapter, choices)
        yield f"{line} (backend={env.backend}); mend: {path}.adapter={AUTO}"
    if env.kind == "openenv" and env.backend not in remote:
        yield f"{path}.backend: kind=openenv has no game here (got {env.backend}); mend: {path}.backend=url"
    with suppress(ConfigError):  # one that does not load is named elsewhere
        if env.backend is not Backend.IN_PROCESS and issubclass(scheduler_class(scheduler), SwiftScheduler):
            here = f"{scheduler.target} opens its environment in this process (got {env.backend})"
            yield f"{path}.backend: {here}; mend: {path}.backend=in_process"


def _judge_class(key: str, env: EnvSpec) -> None:
    """Raises ConfigError where the class cannot be found or is not finished."""
    try:
        cls = environment_class(env.kind, env.target)
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise ConfigError(f"target: {env.target} lacks {', '.join(missing)}")
    except ConfigError as error:
        mend = "target=package.module:Name" if env.kind == CUSTOM else f"kind={'|'.join(kinds())}"
        raise ConfigError(f"env.{key}.{error}; mend: env.{key}.{mend}") from error


def _face(key: str, spec: RunSpec, environment: Environment) -> Iterator[str]:
    """Whether the environment can be played through its scheduler's face."""
    scheduler, cls = spec.scheduler_of(key), type(environment)
    if scheduler.target is not None:
        yield from _plugged(key, scheduler, cls)
        return
    if scheduler.kind is SchedulerKind.GYM and cls.parse_action is Environment.parse_action:
        yield f"env.{key}: {cls.__name__} has no parse_action for scheduler=gym; mend: scheduler=tool_calling"
    if scheduler.kind is not SchedulerKind.TOOL_CALLING:
        return
    tools = environment.tools()
    if cls.conversational:
        yield f"env.{key}: {cls.__name__} hears text, not tool calls; mend: scheduler=gym"
    for name, function in tools.items():
        if fault := unreadable(function):
            yield f"env.{key}: tool {name} of {cls.__name__} {fault}; mend: write it"
    if not tools:
        yield f"env.{key}: {cls.__name__} has no @tool for scheduler=tool_calling; mend: scheduler=gym"


def _plugged(key: str, scheduler: SchedulerSpec, cls: type[Environment]) -> Iterator[str]:
    """Whether a scheduler of the user's can play it; one that does not load is named elsewhere."""
    with suppress(ConfigError):
        loop = scheduler_class(scheduler)
        if issubclass(loop, SwiftScheduler) and not issubclass(cls, SwiftEnvironment):
            yield unfit(key, loop, cls)


def _tasks(key: str, spec: RunSpec, environment: Environment) -> Iterator[str]:
    """Whether there is something to play: sound rows of a dataset, or tasks of the environment's own."""
    path = f"env.{key}.dataset"
    if spec.env[key].dataset is None:
        tasks = environment.tasks(held_out=False) if spec.plays else None
        if tasks == []:
            mend = f"{path}=<file>"
            yield f"env.{key}: {type(environment).__name__} has no tasks without a dataset; mend: {mend}"
        if spec.plays and tasks is None and (missing := misfit((), type(environment).reset)):
            yield f"env.{key}: {missing}, which only a dataset has; mend: {path}=<file>"
        return
    reset = environment.reset if _is_our_game(spec.env[key], environment) else None
    try:
        for line in islice(faults(key, spec.env, evaluated=spec.evaluates, reset=reset), _BAD_ROWS):
            yield f"{path}: {line}"
    except ConfigError as error:
        yield f"{path}: {error}; mend: {path}=<a local .jsonl or .parquet file>"


def _is_our_game(env: EnvSpec, environment: Environment) -> bool:
    """Whether reset does nothing but look at its row."""
    ours = type(environment).__module__.startswith("envrl.env.")
    here = env.backend in (Backend.IN_PROCESS, Backend.SERVER)
    return ours and here and not isinstance(environment, SwiftEnvironment)


def _scheduler(spec: RunSpec) -> Iterator[str]:
    if spec.scheduler.target is None:
        return
    try:
        scheduler_class(spec.scheduler)
    except ConfigError as error:
        yield f"scheduler.target: {error}; mend: scheduler.target=package.module:Name, or null"


def _rewards(spec: RunSpec) -> Iterator[str]:
    used = {"reward.terms": spec.reward.terms}
    if spec.reward.terms is None:
        used = {f"env.{key}.reward": env.reward for key, env in spec.env.items()}
    for path, terms in used.items():
        for term in terms or []:
            try:
                function = resolve(term)
            except ConfigError as error:
                yield f"{path}: {error}; mend: {path}=[env]"
                continue
            if "environments" in inspect.signature(function).parameters:
                yield from _out_of_sight(path, term, spec)
        if not terms:
            yield f"{path}: no terms (got []); mend: {path}=[env]"
        elif len(once := list(dict.fromkeys(terms))) < len(terms):
            shown = f"got [{','.join(terms)}]"
            yield f"{path}: a term stands more than once ({shown}); mend: {path}=[{','.join(once)}]"
    known = {term for terms in used.values() for term in terms or []}
    weights = spec.reward.weights
    if isinstance(weights, list):
        terms = spec.reward.terms
        if terms is None or len(weights) != len(terms):
            yield (
                f"reward.weights: a list has one weight per term of reward.terms={terms} (got {weights}); "
                "mend: reward.weights={<term>: <weight>}"
            )
        return
    for term in weights or {}:
        if term not in known:
            yield f"{unknown('reward.weights', term, known)}; mend: reward.weights={{{_first(known)}: 1}}"


def _out_of_sight(path: str, term: str, spec: RunSpec) -> Iterator[str]:
    """The environments that a reward function would look at, and find stand-ins for those on a server."""
    for key, env in spec.env.items():
        if env.backend is not Backend.IN_PROCESS and path in ("reward.terms", f"env.{key}.reward"):
            where = f"env.{key}.backend"
            yield f"{path}: {term} looks at environments, which {env.backend} hides; mend: {where}=in_process"


def _first(names: set[str]) -> str:
    return min(names, default="env")


def _model(spec: RunSpec) -> Iterator[str]:
    model = spec.model
    if model.name_or_path == "tiny" and model.tiny is None:
        yield "model.tiny: no shape for name_or_path=tiny; mend: model=tiny"
    if re.match(r"~|\.{0,2}/", model.name_or_path) and not Path(model.name_or_path).expanduser().is_dir():
        yield f"model.name_or_path: no such folder (got {model.name_or_path!r}); mend: model.name_or_path=..."
    if model.tiny and model.tiny.head_dim % 2:
        even = model.tiny.head_dim + 1
        yield f"model.tiny.head_dim: must be even (got {even - 1}); mend: model.tiny.head_dim={even}"
    if model.tiny and model.tiny.num_attention_heads % model.tiny.num_key_value_heads:
        heads, shared = model.tiny.num_attention_heads, model.tiny.num_key_value_heads
        yield (
            f"model.tiny.num_key_value_heads: must divide num_attention_heads, which is {heads} "
            f"(got {shared}); mend: model.tiny.num_key_value_heads={heads}"
        )


def _checkpoint(spec: RunSpec) -> Iterator[str]:
    repository = spec.checkpoint.push_to_hub
    if repository is not None and not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", repository):
        mend = "mend: checkpoint.push_to_hub=<owner>/<name>"
        yield f"checkpoint.push_to_hub: no repository's name (got {repository!r}); {mend}"


def _grpo(spec: RunSpec) -> Iterator[str]:
    groups, envs = spec.grpo.groups_per_step, len(spec.env)
    world = world_size()
    if groups < envs:
        yield (
            f"grpo.groups_per_step: every one of {envs} environments needs a group "
            f"(got {groups}); mend: grpo.groups_per_step={envs}"
        )
    if groups % world:
        yield (
            f"grpo.groups_per_step: {world} ranks share whole groups (got {groups}); "
            f"mend: grpo.groups_per_step={(groups // world + 1) * world}"
        )
    yield from grpo_settings.broken(spec)
    weights = {key: env.weight for key, env in spec.env.items()}
    evaluated = {env for env, _ in islice(mixture(weights), spec.evaluate.episodes)}
    if spec.evaluates and (left_out := [key for key in spec.env if key not in evaluated]):
        yield (
            f"evaluate.episodes: by weight, {spec.evaluate.episodes} leave none for env.{left_out[0]}; "
            f"mend: evaluate.episodes={math.ceil(sum(weights.values()) / weights[left_out[0]])}"
        )
    if spec.evaluate.samples > 1 and spec.evaluate.temperature == 0:
        yield (
            f"evaluate.samples: greedy play repeats itself (got {spec.evaluate.samples} at temperature 0); "
            f"mend: evaluate.temperature=1 or evaluate.samples=1"
        )
