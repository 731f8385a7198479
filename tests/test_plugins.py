"""Files that bring environments, rewards and schedulers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import envrl
from envrl import compose
from envrl.env import REGISTRY, environment_class
from envrl.env.compat.swift import envs, multi_turns
from envrl.errors import ConfigError
from envrl.reward import TERMS, resolve
from envrl.scheduler import SCHEDULERS, scheduler_class

PLUGIN = """
from neighbour import SECRET

from envrl.env import REGISTRY
from envrl.env.compat.swift import Env, envs, multi_turns, GYMScheduler
from envrl.env.frozen_lake import FrozenLake
from envrl.reward import TERMS
from envrl.scheduler import SCHEDULERS, GymScheduler

class Pond(FrozenLake):
    secret = SECRET

class Loop(GymScheduler):
    pass

class Swamp(Env):
    async def reset(self, config): ...
    async def step(self, action): ...
    async def close(self): ...

class Walker(GYMScheduler):
    pass

def calm(record):
    return 1.0

REGISTRY |= {"pond": Pond, "puddle": "my_plugin:Pond"}
SCHEDULERS |= {"loop": Loop, "late_loop": "my_plugin:Loop"}
TERMS["calm"] = calm
envs["swamp"] = Swamp
multi_turns["walker"] = Walker
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[str]:
    """The override that loads it; what it registers is forgotten afterwards."""
    (tmp_path / "neighbour.py").write_text("SECRET = 7\n")
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    registries: list[dict[str, Any]] = [REGISTRY, SCHEDULERS, TERMS, envs, multi_turns]
    before = [dict(registry) for registry in registries]
    yield f"plugins=[{tmp_path}/my_plugin.py]"
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


def with_plugin(plugin: str, *overrides: str) -> Any:
    return compose([plugin, "model.warm_start=null", *overrides])


@pytest.mark.parametrize("target", ["pond", "puddle", "my_plugin:Pond", "envrl_plugin_my_plugin:Pond"])
def test_an_environment_by_any_of_its_names(plugin: str, target: str) -> None:
    spec = with_plugin(plugin, "env=custom", f"env.custom.target={target}")
    cls = environment_class(spec.env["custom"].kind, spec.env["custom"].target)
    assert (cls.__name__, cls.secret) == ("Pond", 7)  # type: ignore[attr-defined]


def test_a_kind_of_its_own(plugin: str) -> None:
    swamp = ["env.swamp.kind=custom", "env.swamp.target=swamp"]  # ms-swift's names are targets alone
    spec = with_plugin(plugin, "env.pond.kind=pond", *swamp, "scheduler=gym")
    assert set(spec.env) == {"frozen_lake", "pond", "swamp"}
    assert environment_class("pond").__name__ == "Pond"
    assert environment_class("custom", "swamp").__name__ == "Swamp"


@pytest.mark.parametrize(
    ("target", "name"),
    [("loop", "Loop"), ("late_loop", "Loop"), ("my_plugin:Loop", "Loop"), ("gym", "GymScheduler")],
)
def test_a_scheduler_by_name(plugin: str, target: str, name: str) -> None:
    spec = with_plugin(plugin, f"scheduler.target={target}")
    assert scheduler_class(spec.scheduler_of("frozen_lake")).__name__ == name


def test_a_swift_scheduler_by_name(plugin: str) -> None:
    spec = with_plugin(plugin, "scheduler.target=walker", "env=custom", "env.custom.target=swamp")
    assert scheduler_class(spec.scheduler_of("custom")).__name__ == "Walker"


def test_a_reward_by_name(plugin: str) -> None:
    spec = with_plugin(plugin, "reward.terms=[env,calm,my_plugin:calm]")
    assert [resolve(term)({"env_reward": 2.0}) for term in spec.reward.terms] == [2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("env.x.kind=pnd", "did you mean pond"),
        ("scheduler.target=lop", "did you mean loop"),
        ("reward.terms=[cal]", "did you mean calm"),
    ],
)
def test_a_name_nearly_right_is_offered(plugin: str, override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        with_plugin(plugin, override)


def test_a_file_runs_once_however_often_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text("import envrl\nenvrl.runs = getattr(envrl, 'runs', 0) + 1\n")
    for name in ("counting.py", "../" + tmp_path.name + "/counting.py"):
        compose([f"plugins=[{tmp_path}/{name}]"])
    assert vars(envrl).pop("runs") == 1
