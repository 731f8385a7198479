"""What ships: the wheel, the public names, the make targets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from small import SMALL, WARM  # type: ignore[import-not-found]

import envrl
import envrl.engine
import envrl.env
import envrl.grpo
import envrl.model
from envrl.importing import load_object

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network: hatchling is a development dependency."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(out.glob("envrl-*.whl"))


def test_the_wheel_carries_all_yaml_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("conf", "recipes"):
        for file in filter(Path.is_file, (ROOT / folder).rglob("*")):
            assert f"envrl/_{folder}/{file.relative_to(ROOT / folder).as_posix()}" in names
    assert not [name for name in names if name.startswith("tests/")]


def test_the_wheel_composes_outside_of_a_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    command = [sys.executable, "-m", "envrl", "recipe=tools", "grpo.staleness=1"]  # its data is found
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "grpo.staleness" in done.stderr


PUBLIC = [
    "envrl:__version__",
    "envrl:compose",
    "envrl:run",
    "envrl.engine:ScriptedEngine",
    "envrl.env:Environment",
    "envrl.env:make",
    "envrl.env:tool",
    "envrl.grpo:group_advantages",
    "envrl.grpo:policy_loss",
    "envrl.model:parse_tool_calls",
]


def test_public_names_are_pinned() -> None:
    """Others import these; each is exported on purpose."""
    for path in PUBLIC:
        module, _, name = path.partition(":")
        assert load_object(path) is not None
        assert name in import_module(module).__all__, path
    assert envrl.__all__ == ["__version__", "compose", "run"]


def test_public_names_do_what_they_say() -> None:
    lake = envrl.env.make("frozen_lake", size=3)
    assert isinstance(lake, envrl.env.Environment)
    assert envrl.env.tool(lambda self: "").__name__ == "<lambda>"
    (call,) = envrl.model.parse_tool_calls('<tool_call>{"name": "move", "arguments": {}}</tool_call>')
    assert (call.name, call.error) == ("move", None)
    assert envrl.grpo.group_advantages([0.0, 1.0], scale="none") == [-0.5, 0.5]
    assert issubclass(envrl.engine.ScriptedEngine, envrl.engine.Engine)
    assert envrl.compose(["seed=3"]).seed == 3


def test_make_help_lists_every_target() -> None:
    make = shutil.which("make")
    assert make is not None
    listed = subprocess.run([make, "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    recipes = {file.stem for file in (ROOT / "recipes").glob("*.yaml")}
    assert set(re.findall(r"^  make (\S+) +\S", listed, re.MULTILINE)) == targets | recipes


def test_every_recipe_says_what_it_reproduces() -> None:
    for file in (ROOT / "recipes").glob("*.yaml"):
        first, second, *_ = file.read_text().splitlines()
        assert first == "# @package _global_"
        assert second.startswith("# "), file


def test_the_environment_of_the_readme_is_trained(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(
        r"^```python\n(# my_games\.py\n.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    (elsewhere / "my_games.py").write_text(block)
    monkeypatch.syspath_prepend(elsewhere)
    summary = envrl.run(envrl.compose([*SMALL, *WARM, "env=custom", "env.custom.target=my_games:Parity"]))
    assert summary.status == "ok"
    assert [evaluation["label"] for evaluation in summary.evaluations] == ["warm_start", "grpo"]
