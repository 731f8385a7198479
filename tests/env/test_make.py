from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envrl.env import environment_class, make
from envrl.env.frozen_lake import FrozenLake
from envrl.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "target", "reason"),
    [
        ("frozen_lak", None, "did you mean frozen_lake"),
        ("chess", None, "kind: unknown 'chess'; choose from: catch, custom, .*frozen_lake"),
        ("nonsense", None, "choose from: (?!.*none)"),
        ("custom", None, "target: missing"),
        ("frozen_lake", "envrl.env.frozen_lake:FrozenLake", "kind=custom"),
        ("custom", "envrl.env.frozen_lake", "package.module:Name"),
        ("custom", "envrl.env.frozen_lak:FrozenLake", "No module named"),
        ("custom", "envrl.env.frozen_lake:FrozenLak", "did you mean FrozenLake"),
        ("custom", "envrl.env.frozen_lake:random_map", "not a subclass"),
        ("custom", "pathlib:Path", "not a subclass"),
    ],
)
def test_a_wrong_name_says_why(kind: str, target: str | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        environment_class(kind, target)


def test_a_class_that_cannot_be_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_lake.py").write_text("class Lake(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot import broken_lake"):
        environment_class("custom", "broken_lake:Lake")


def test_a_class_by_import_path() -> None:
    assert environment_class("custom", "envrl.env.frozen_lake:FrozenLake") is FrozenLake


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"size": 1}, "size.*got 1"),
        ({"p": 0}, "p: .*got 0"),
        ({"p": 1.1}, "got 1.1"),
        ({"sise": 4}, "mean size"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"env.frozen_lake.args: .*{reason}"):
        make("frozen_lake", **args)


def test_importing_environments_is_light() -> None:
    code = "import sys, envrl.env, envrl.env.host, envrl.env.policies, envrl.model; "
    code += "envrl.env.make('frozen_lake'); print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
