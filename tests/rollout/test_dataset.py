"""Datasets: every format gives the rows that were written, each row has one owner, and bad ones are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow.parquet import write_table

from envrl import compose
from envrl.errors import ConfigError
from envrl.rollout.dataset import opening_messages, read_rows
from envrl.rollout.rows import own_rows, unread
from envrl.rollout.tasks import Task, Tasks
from envrl.spec import EnvSpec

SAYS = [{"role": "user", "content": "Play."}]
CONFIGS = [
    {"env_config": {"name": "frozen_lake", "seed": 7, "p": 0.5, "slip": False, "grid": ["SG"], "note": None}},
    {"env_config": {"name": "frozen_lake", "seed": 8}},
    {"env_config": {"name": "frozen_lake", "size": 4, "deep": {"a": 1}}},
]


def lines(file: Path, rows: Iterable[Any]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def parquet(file: Path, rows: list[dict[str, Any]]) -> Path:
    write_table(pyarrow.Table.from_pylist(rows), file)
    return file


def without_null(row: dict[str, Any]) -> dict[str, Any]:
    return {"env_config": {key: value for key, value in row["env_config"].items() if value is not None}}


def lake(dataset: object, **env: Any) -> dict[str, EnvSpec]:
    return {"frozen_lake": EnvSpec(kind="frozen_lake", dataset=str(dataset), **env)}


def tasks(envs: dict[str, EnvSpec], count: int, stage: str = "train") -> list[Task]:
    return [group[0] for group in Tasks(envs, seed=1, stage=stage, members=1).groups(0, count)]


# --- reading ----------------------------------------------------------------------------------


def test_json_lines_keep_every_key_and_type(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", CONFIGS)
    assert json.dumps(read_rows(str(file))) == json.dumps(CONFIGS)
    envs = lake(file)
    assert sorted(json.dumps(task.row) for task in tasks(envs, 3)) == sorted(map(json.dumps, CONFIGS))


def test_arrow_invents_no_keys(tmp_path: Path) -> None:
    """Structs of one column get the same fields in all rows, null where a row had none (ms-swift)."""
    file = parquet(tmp_path / "rows.parquet", CONFIGS)
    written = [without_null(row) for row in CONFIGS]
    assert json.dumps(read_rows(str(file)), sort_keys=True) == json.dumps(written, sort_keys=True)


def test_a_folder_is_read_as_the_hub_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    parquet(tmp_path / "mine" / "train.parquet", CONFIGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    assert read_rows("mine") == [without_null(row) for row in CONFIGS]


def test_without_a_network_the_hub_asks_for_a_file() -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["env.frozen_lake.dataset=nobody/nothing"])
    assert "env.frozen_lake.dataset: cannot read 'nobody/nothing'" in str(refused.value)
    assert "mend: env.frozen_lake.dataset=<a local .jsonl or .parquet file>" in str(refused.value)


def test_what_episodes_jsonl_could_not_hold_is_refused(tmp_path: Path) -> None:
    file = parquet(tmp_path / "rows.parquet", [{"image": {"bytes": b"x"}, "binary": 1}])
    with pytest.raises(ConfigError, match="column 'image' holds binary; write it as text or numbers"):
        read_rows(str(file))


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"seed": 1}])
    assert read_rows(str(file)) is read_rows(str(file))
    lines(file, [{"seed": 1}, {"seed": 2}])
    assert len(read_rows(str(file))) == 2


FORMATS = """
import sys
from envrl import compose
compose(["env.frozen_lake.dataset=rows.jsonl"])
print(sorted({"pyarrow", "datasets", "torch", "pandas"} & set(sys.modules)))
"""


def test_json_lines_import_nothing_heavy(tmp_path: Path) -> None:
    lines(tmp_path / "rows.jsonl", [{"seed": seed} for seed in range(10)])
    command = [sys.executable, "-c", FORMATS]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what a row means ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "opened"),
    [
        ({"prompt": "Play."}, SAYS),
        ({"prompt": SAYS}, SAYS),
        ({"messages": SAYS, "prompt": "Other."}, SAYS),
        ({"messages": None, "prompt": "Play."}, SAYS),
        ({"secret": "crane"}, None),
        ({"prompt": None}, None),
    ],
)
def test_a_row_may_open_the_conversation(row: dict[str, Any], opened: Any) -> None:
    assert opening_messages(row) == opened


def test_all_columns_reach_the_task_and_the_seed_is_the_groups(tmp_path: Path) -> None:
    row = {"prompt": SAYS, "environment": "frozen_lake", "seed": 5, "answer": None, "weights": [1, 2.5]}
    (task,) = tasks(lake(lines(tmp_path / "rows.jsonl", [row])), 1)
    assert (task.seed, task.messages, task.row) == (5, SAYS, row)
    assert json.dumps(task.row) == json.dumps(row)


def test_a_null_seed_is_none_at_all(tmp_path: Path) -> None:
    envs = lake(lines(tmp_path / "rows.jsonl", [{"seed": None, "grid": ["SG"]}]))
    first, second = tasks(envs, 2)
    assert first.row == second.row == {"grid": ["SG"]}
    assert first.seed != second.seed


# --- whose a row is -----------------------------------------------------------------------------


def mixture(file: Path, *keys: str) -> dict[str, EnvSpec]:
    """Lakes, all of one kind."""
    return {key: EnvSpec(kind="frozen_lake", dataset=str(file)) for key in keys}


def test_one_file_serves_several_keys(tmp_path: Path) -> None:
    named = [{"env": "a", "n": 0}, {"environment": "b", "n": 1}, {"env_config": {"name": "a"}, "n": 2}]
    shared = [{"n": 3}, {"env": "frozen_lake", "n": 4}]
    file = lines(tmp_path / "rows.jsonl", named + shared)
    envs = mixture(file, "a", "b")
    assert [row["n"] for row in own_rows("a", envs)] == [0, 2, 3, 4]
    assert [row["n"] for row in own_rows("b", envs)] == [1, 3, 4]


def test_a_key_is_named_before_a_kind(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"env": "frozen_lake", "n": 0}, {"env": "big", "n": 1}])
    envs = mixture(file, "frozen_lake", "big")
    assert [row["n"] for row in own_rows("frozen_lake", envs)] == [0]
    part = Tasks(envs, seed=1, stage="check", members=1, only=["big"])
    assert [group[0].row["n"] for group in part.groups(0, 3)] == [1, 1, 1]


POND = """
from envrl.env.compat.swift import Env, envs
class Pond(Env):
    async def reset(self, config): return "a pond", {}, ""
    async def step(self, action): return "", 1.0, True, {}
    async def close(self): pass
class Lake(Pond): pass
envs |= {"mere": Pond, "tarn": Lake}
"""


def test_names_of_ms_swifts_registry_are_the_rows_own_choice(tmp_path: Path) -> None:
    (tmp_path / "ponds.py").write_text(POND)
    file = lines(tmp_path / "rows.jsonl", [{"env_config": {"name": name}} for name in ("mere", "tarn")] * 10)
    base = [f"plugins=[{tmp_path}/ponds.py]", "scheduler=gym", "model.warm_start=null"]
    one = compose([*base, "env=custom", "env.custom.target=mere", f"env.custom.dataset={file}"])
    assert len(own_rows("custom", one.env)) == 20
    two = {key: EnvSpec(kind="custom", target=key, dataset=str(file)) for key in ("mere", "tarn")}
    assert [len(own_rows(key, two)) for key in two] == [10, 10]
    lines(file, [{"env_config": {"name": "pnd"}}] * 10)
    with pytest.raises(ConfigError, match="env_config.name is 'pnd'; known: custom, .*mere"):
        compose([*base, "env=custom", "env.custom.target=mere", f"env.custom.dataset={file}"])


def test_each_keys_own_rows_are_split(tmp_path: Path) -> None:
    rows = [{"env": "ab"[n % 2], "seed": n} for n in range(40)]
    envs = mixture(lines(tmp_path / "rows.jsonl", rows), "a", "b")
    held_out = {(task.env, task.seed) for task in tasks(envs, 80, "evaluate")}
    assert held_out == {("a", 18), ("a", 38), ("b", 19), ("b", 39)}
    trained = {(task.env, task.seed) for task in tasks(envs, 160)}
    assert trained == {("ab"[n % 2], n) for n in range(40)} - held_out


# --- what is wrong ------------------------------------------------------------------------------


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    assert all(line.count("; mend: ") == 1 for line in str(caught.value).splitlines())
    return str(caught.value)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (['{"seed": 1}'] * 999 + ['{"environment": "frozn"}'], "row 1000 of"),
        (['{"environment": "frozn"}'], "environment is 'frozn'; known: frozen_lake"),
        (['{"env": "frozn"}'], "env is 'frozn'; known: frozen_lake"),
        (['{"env_config": {"name": "frozn"}}'], "env_config.name is 'frozn'; known: frozen_lake"),
        (['{"env": ["frozen_lake"]}'], "env is ['frozen_lake']; known: frozen_lake"),
        (["", "{"], "line 2 is not JSON"),
        (["[1]"], "line 1 is not a JSON object (got [1])"),
        (['{"seed": "x"}'], "seed must be an integer (got 'x')"),
        (['{"seed": true}'], "seed must be an integer (got True)"),
        (['{"env_config": "{}"}'], "env_config must be an object (got '{}')"),
        (['{"messages": "hi"}'], "messages must be a list of objects with role and content"),
        (['{"messages": [{"role": "user"}]}'], "messages must be a list of objects with role and content"),
        (['{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}'], "prompt must be a list of"),
        (['{"prompt": [{"role": "usr", "content": "x"}]}'], "prompt has the role 'usr'; known: system, user"),
        (["[" * 99999], "line 1 is not JSON"),
        (['{"prompt": 3}'], "prompt must be a list of objects with role and content, both text (got 3)"),
        (['{"seed": 1}'] * 9, "has 9 rows for env.frozen_lake; mend: more rows, or stages=[...] without"),
        ([], "has no rows"),
    ],
)
def test_a_dataset_is_judged_row_by_row(tmp_path: Path, rows: list[str], says: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(rows))
    assert says in refused(f"env.frozen_lake.dataset={file}")


@pytest.mark.parametrize(
    ("env", "row", "says"),
    [
        ("wordle", {"secret": "four"}, "secret: 5 letters are needed, got 'four'"),
        ("sudoku", {"board": "." * 81}, "board: "),
        ("frozen_lake", {"grid": ["SFG", "FF"]}, "grid: rows of equal length"),
        ("catch", {"column": 5}, "column: 0 to 4 is needed, got 5"),
        ("catch", {"grid": 5}, "'int' object is not iterable"),
    ],
)
def test_a_game_judges_the_task_of_a_row(tmp_path: Path, env: str, row: Any, says: str) -> None:
    file = lines(tmp_path / "rows.jsonl", [*[{"seed": 1}] * 19, row])
    said = refused(f"env={env}", f"env.{env}.dataset={file}")
    assert f"row 20 of '{file}': {says}" in said


def test_a_strangers_reset_is_not_called_to_judge_a_row(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"rewards": []}] * 10)
    target = ["env=custom", "env.custom.target=games:Rated", "model.warm_start=null"]
    assert compose([*target, f"env.custom.dataset={file}"]).seed == 1


@pytest.mark.parametrize("name", ["", "/", ".."])
def test_a_dataset_has_a_name(name: str) -> None:
    assert f"'{name}' names no dataset" in refused(f"env.frozen_lake.dataset='{name}'")


def test_a_mistyped_name_in_the_last_of_a_thousand_rows(tmp_path: Path) -> None:
    """A name is never looked up for the first time in the middle of a run (trl#6002)."""
    names = ["custom", "frozen_lake"] * 499 + ["custom", "custon"]
    file = lines(tmp_path / "rows.jsonl", [{"environment": name} for name in names])
    target = "env.custom.target=games:Guess"
    both = [f"env.{key}.dataset={file}" for key in ("custom", "frozen_lake")]
    said = refused("env=[custom,frozen_lake]", target, *both)
    assert f"env.custom.dataset: row 1000 of '{file}': environment is 'custon'; known: custom, froz" in said


def test_a_row_that_nobody_would_play_is_named(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"env": "frozen_lake"}] * 20 + [{"env": "custom"}])
    said = refused(
        "env=[custom,frozen_lake]", "env.custom.target=games:Guess", f"env.frozen_lake.dataset={file}"
    )
    assert f"row 21 of '{file}': env is 'custom', and env.custom.dataset is None, not this one" in said


def test_two_spellings_of_a_path_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines(Path("rows.jsonl"), [{"env": "frozen_lake"}, {"env": "custom"}] * 10)
    paths = ["env.frozen_lake.dataset=rows.jsonl", f"env.custom.dataset={tmp_path}/rows.jsonl"]
    assert compose(["env=[custom,frozen_lake]", "env.custom.target=games:Guess", *paths]).seed == 1


def test_a_column_that_reset_does_not_take_is_named(tmp_path: Path) -> None:
    (tmp_path / "strict.py").write_text(STRICT)
    file = lines(tmp_path / "rows.jsonl", [{"word": "crane"}] * 10 + [{"wrod": "crane"}])
    env = ["env=custom", "env.custom.target=envrl_plugin_strict:Strict", "model.warm_start=null"]
    said = refused(*env, f"plugins=[{tmp_path}/strict.py]", f"env.custom.dataset={file}")
    assert "row 11 of" in said
    assert "Strict.reset: got an unexpected keyword argument 'wrod'; it is called with every col" in said


STRICT = """
from envrl.env import Environment, tool
class Strict(Environment):
    def instructions(self, face): return ""
    def reset(self, *, seed=None, word=""): return None
    @tool
    def act(self) -> str: return ""
"""


def test_a_sound_dataset_passes(tmp_path: Path) -> None:
    row = {"seed": 3, "environment": "frozen_lake", "messages": SAYS}
    file = lines(tmp_path / "rows.jsonl", [row] * 10)
    dataset = f"env.frozen_lake.dataset={file}"
    assert compose([dataset]).env["frozen_lake"].dataset == str(file)
    lines(file, [row])
    assert compose([dataset, "stages=[train]"]).env["frozen_lake"].dataset == str(file)


@pytest.mark.parametrize("overrides", [["stages=[evaluate]"], ["stages=[train]", "evaluate.every=1"]])
def test_no_row_is_trained_on_and_evaluated(tmp_path: Path, overrides: list[str]) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"seed": 1}, {"seed": 2}])
    assert "has 2 rows for env.frozen_lake; mend: more rows" in refused(
        f"env.frozen_lake.dataset={file}", *overrides
    )
    with pytest.raises(ConfigError, match="env.frozen_lake: has no task that is held out"):
        tasks(lake(file), 2, "evaluate")


def test_columns_that_no_row_has_are_known(tmp_path: Path) -> None:
    file = lines(tmp_path / "words.jsonl", [{"word": "crane"}] * 20)
    envs = {"wordle": EnvSpec(kind="wordle", dataset=str(file))}
    assert unread("wordle", envs) == ["secret"]
    for sound in ({"secret": "crane"}, {"prompt": "Play."}):
        lines(file, [sound] * 20)
        assert unread("wordle", envs) == []
