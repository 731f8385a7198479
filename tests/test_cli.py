"""The command line: exit status, clean lines on stderr, Hydra's own switches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from small import game, lake  # type: ignore[import-not-found]

from envrl.cli import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command runs in an empty folder, with argv and environment put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["envrl"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")


def envrl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m envrl` in a process of its own."""
    command = [sys.executable, "-m", "envrl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["grpo.num_generations=1"], "grpo.num_generations: must be greater than or equal to 2"),
        (["env=nope"], "unknown 'nope'"),
        (["env=3"], "a group takes an option's name"),
        (["hydra.foo=1"], "hydra.foo"),
        (["--config-dir", "nowhere"], "not found"),
        (["--cfg", "job", "--info"], "Only one of --run"),
        (["--cfg", "job", "grpo.stepz=1"], "grpo.stepz: unknown key; did you mean grpo.steps?"),
        (["-m", "seed=-1,-2"], "job 1: seed: must be greater than or equal to 0 (got -2)"),
    ],
)
def test_bad_input_ends_with_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("envrl: ")
    assert says in said.err
    assert "Traceback" not in said.err + said.out
    assert not list(tmp_path.glob("outputs/[!m]*")), "a bad composition makes no run directory"


def test_bad_input_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = envrl("grpo.steps=0", "sed=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "envrl: grpo.steps: must be greater than or equal to 1 (got 0); mend: grpo.steps=1",
        "       sed: unknown key; did you mean seed?",
    ]
    assert not list(tmp_path.iterdir())


def test_a_failing_stage_ends_with_1_and_one_line(tmp_path: Path) -> None:
    overrides = game("Unreachable", "stages=[evaluate]", "rollout.retries=0", "output_dir=failed")
    done = envrl(*overrides)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith("envrl: 8 of 8 episodes ended as error")
    assert "no route to the game" in last
    assert json.loads((tmp_path / "failed" / "summary.json").read_text())["status"] == "failed"
    assert "Traceback" in (tmp_path / "failed" / "run.log").read_text()


def test_a_run_that_is_done_ends_with_0(tmp_path: Path) -> None:
    done = envrl(*lake("recipe=frozen_lake_gym", "stages=[check]", "output_dir=checked"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "check: env.frozen_lake gold scores 1.00" in done.stderr
    assert json.loads((tmp_path / "checked" / "summary.json").read_text())["status"] == "ok"


def test_broken_yaml_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pond.yaml").write_text("# @package env.pond\nkind: [\n")
    assert main(["env=pond", "--config-dir", str(tmp_path)]) == 2
    assert "pond.yaml" in capsys.readouterr().err


def test_a_sweep_judges_every_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "grpo.steps=0,-1", "env=frozen_lake,[frozen_lake,custom]"]) == 2
    said = capsys.readouterr().err
    assert [f"job {job}: " in said for job in range(5)] == [True, True, True, True, False]


def test_a_sweep_goes_on_after_a_job_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """And says at the end which did; each has a traceback of its own in its log (hydra#2284)."""
    games = game("Guess,games:Unreachable,games:Moody", "stages=[evaluate]", "rollout.retries=0")
    assert main(["-m", *games]) == 1
    said = capsys.readouterr().err
    assert "envrl: job 1: 8 of 8 episodes ended as error" in said
    assert said.splitlines()[-1] == "envrl: 1 of 3 jobs failed: 1"
    runs = {}
    for spec in Path("outputs").glob("custom-*/spec.yaml"):
        status = json.loads((spec.parent / "summary.json").read_text())["status"]
        traced = "no route to the game" in (spec.parent / "run.log").read_text().partition("Traceback")[2]
        runs[yaml.safe_load(spec.read_text())["env"]["custom"]["target"]] = (status, traced)
    good = ("ok", False)
    assert runs == {"games:Guess": good, "games:Unreachable": ("failed", True), "games:Moody": good}


SIGNS = 'a|b #1 {x} = "q", 你好'
PROMPT = "env.frozen_lake.prompt=" + '"' + SIGNS.replace('"', '\\"') + '"'
MINE = f"# @package _global_\nenv:\n  frozen_lake:\n    prompt: '{SIGNS}'\n"


@pytest.mark.parametrize(
    "arguments", [["--config-dir", ".", "recipe=mine"], [PROMPT], ["-m", f"{PROMPT},plain"]]
)
def test_signs_and_letters_are_saved_as_they_were_given(arguments: list[str]) -> None:
    """From a YAML file, a quoted override and a sweep (hydra#1843)."""
    Path("recipe").mkdir()
    Path("recipe/mine.yaml").write_text(MINE)
    assert main([*arguments, "stages=[report]"]) == 0
    saved = [yaml.safe_load(file.read_text()) for file in Path("outputs").glob("frozen_lake-*/spec.yaml")]
    prompts = {spec["env"]["frozen_lake"]["prompt"] for spec in saved}
    assert prompts == ({SIGNS, "plain"} if "-m" in arguments else {SIGNS})


def test_help_lists_groups_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    said = capsys.readouterr().out
    assert caught.value.code == 0
    assert "scheduler: gym, harness, tool_calling" in said
    assert "recipe: catch, echo, frozen_lake, frozen_lake_gym, sudoku" in said
    assert str(Path(__file__).parents[1]) not in said


def test_cfg_shows_the_composition(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--cfg", "job", "env.frozen_lake.weight=2", "recipe=frozen_lake_gym"]) == 0
    said = capsys.readouterr().out
    assert "weight: 2" in said
    assert "kind: gym" in said
    assert not list(tmp_path.iterdir())


def test_a_config_folder_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text("# @package _global_\nseed: 77\n")
    assert main(["recipe=mine", "--cfg", "job", "--config-dir", str(tmp_path)]) == 0
    assert "seed: 77" in capsys.readouterr().out
