from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envrl.errors import ConfigError
from envrl.grpo import checkpoints
from envrl.grpo.checkpoints import broken, latest, load_state, save

FOREVER = """
import os, random, signal, sys, time
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar
from envrl.grpo.checkpoints import latest, save, step_of
disable_progress_bar()  # forks share a lock of tqdm's, which a killed one may hold
directory, source = map(Path, sys.argv[1:])
model, tokenizer = AutoModelForCausalLM.from_pretrained(source), AutoTokenizer.from_pretrained(source)
step, rng = 0, random.Random(0)
save(directory, 0, model=model, tokenizer=tokenizer, state={"step": 0}, keep=2)
for _ in range(16):
    saver = os.fork()
    if not saver:
        for step in range(step + 1, step + 100):
            save(directory, step, model=model, tokenizer=tokenizer, state={"step": step}, keep=2)
        os._exit(1)
    time.sleep(rng.uniform(0, 0.5))
    os.kill(saver, signal.SIGKILL)
    os.waitpid(saver, 0)
    print(latest(directory), [path.name for path in directory.glob(".step-*")], flush=True)
    AutoModelForCausalLM.from_pretrained(latest(directory))
    step = step_of(latest(directory))
"""
"""Savers that are killed at random moments, each going on where the one before had come to."""


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def is_whole(path: Path, model: Any) -> bool:
    loaded = AutoModelForCausalLM.from_pretrained(path)
    AutoTokenizer.from_pretrained(path)
    pairs = zip(loaded.parameters(), model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs) and "step" in load_state(path)


def test_a_checkpoint_loads_like_any_model(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    state = {"step": 3, "optimizer": {"m": torch.arange(3.0)}, "tasks": [1, 2], "best": None}
    path = save(tmp_path / "checkpoints", 3, model=model, tokenizer=tokenizer, state=state, keep=1)
    assert path == tmp_path / "checkpoints" / "step-3" == latest(tmp_path / "checkpoints")
    assert is_whole(path, model)
    loaded = load_state(path)
    assert torch.equal(loaded["optimizer"].pop("m"), state["optimizer"]["m"])  # type: ignore[index]
    assert loaded == state | {"optimizer": {}}


def test_pruning_keeps_the_newest_and_the_best(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    for step in (2, 9, 10, 11):
        save(tmp_path, step, model=model, tokenizer=tokenizer, state={}, keep=2, best=2)
    assert names(tmp_path) == ["step-10", "step-11", "step-2"]
    assert latest(tmp_path) == tmp_path / "step-11"


def test_a_step_saved_again_replaces_itself(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    for note in ("first", "second"):
        save(tmp_path, 1, model=model, tokenizer=tokenizer, state={"note": note}, keep=3)
    assert load_state(tmp_path / "step-1") == {"note": "second"}
    assert names(tmp_path) == ["step-1"]


def test_only_our_own_leftovers_are_removed(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    for name in (".git", ".step-4.partial", ".step-5.removed"):
        (tmp_path / name).mkdir()
    (tmp_path / ".note").touch()
    checkpoints.save_weights(tmp_path / "warm_start", model=model, tokenizer=tokenizer)
    assert names(tmp_path) == [".git", ".note", "warm_start"]
    assert latest(tmp_path) is None
    AutoModelForCausalLM.from_pretrained(tmp_path / "warm_start")


def test_a_failure_while_saving_leaves_the_earlier_checkpoint(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    save(tmp_path, 1, model=model, tokenizer=tokenizer, state={"step": 1}, keep=1)
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        save(tmp_path, 2, model=model, tokenizer=tokenizer, state={"step": lambda: 2}, keep=1)
    assert latest(tmp_path) == tmp_path / "step-1"
    save(tmp_path, 3, model=model, tokenizer=tokenizer, state={"step": 3}, keep=1)
    assert names(tmp_path) == ["step-3"]


def test_killed_while_saving(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    source, directory = tmp_path / "source", tmp_path / "checkpoints"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    killed = subprocess.run(
        [sys.executable, "-c", FOREVER, str(directory), str(source)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert killed.returncode == 0, killed.stderr
    left = [line.split(" ", 1) for line in killed.stdout.splitlines()]
    steps = [int(newest.rpartition("-")[2]) for newest, _ in left]
    assert len(steps) == 16
    assert steps == sorted(steps)
    assert steps[-1] > 0
    assert any(leftovers != "[]" for _, leftovers in left)  # in the middle of a write
    assert broken(directory) == []
    assert all(is_whole(path, model) for path in directory.glob("step-*"))
    save(directory, steps[-1] + 1, model=model, tokenizer=tokenizer, state={"step": 1}, keep=1)
    assert names(directory) == [f"step-{steps[-1] + 1}"]


def damage(path: Path, how: str) -> None:
    if how == "cut":
        with (path / "trainer.pt").open("r+b") as file:
            file.truncate(100)
    elif how == "lost":
        (path / "tokenizer.json").unlink()
    elif how == "unlisted":
        (path / "complete.json").unlink()
    else:
        (path / "complete.json").write_text('{"trainer.pt"')


DAMAGES = {
    "cut": "trainer.pt has 100 bytes of ",
    "lost": "it has no tokenizer.json",
    "unlisted": "it has no readable complete.json",
    "garbled": "it has no readable complete.json",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_broken_checkpoints_are_named_and_neither_taken_nor_counted(
    model: Any, tokenizer: Any, tmp_path: Path, how: str
) -> None:
    for step in (1, 2, 3, 9):
        save(tmp_path, step, model=model, tokenizer=tokenizer, state={"step": step}, keep=4)
    for step in (3, 9):
        damage(tmp_path / f"step-{step}", how)
    assert latest(tmp_path) == tmp_path / "step-2"
    third, ninth = broken(tmp_path)
    assert third.startswith(f"{tmp_path / 'step-3'} is ignored: {DAMAGES[how]}")
    assert ninth.startswith(f"{tmp_path / 'step-9'} is ignored: {DAMAGES[how]}")
    with pytest.raises(ConfigError, match=f"step-9 is not a checkpoint .{DAMAGES[how]}.*; give another"):
        load_state(tmp_path / "step-9")
    save(tmp_path, 3, model=model, tokenizer=tokenizer, state={"step": 3}, keep=1)
    assert latest(tmp_path) == tmp_path / "step-3"
    assert names(tmp_path) == ["step-3", "step-9"]


def test_the_card_may_change_later(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    path = save(tmp_path, 1, model=model, tokenizer=tokenizer, state={}, keep=1, card="# A model\n")
    assert (path / "README.md").read_text() == "# A model\n"
    (path / "README.md").write_text("# A model that was evaluated\n")
    assert latest(tmp_path) == path


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    (tmp_path / "step-x").mkdir()
    (tmp_path / ".step-4.partial").mkdir()
    assert latest(tmp_path) is None


def test_a_path_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a checkpoint"):
        checkpoints.load_state(tmp_path / "step-5")
