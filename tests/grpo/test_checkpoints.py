from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envrl.errors import ConfigError
from envrl.grpo import checkpoints
from envrl.grpo.checkpoints import latest, load_state, save

FOREVER = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from envrl.grpo.checkpoints import save
directory, source = map(Path, sys.argv[1:])
model, tokenizer = AutoModelForCausalLM.from_pretrained(source), AutoTokenizer.from_pretrained(source)
step = 0
while True:
    step += 1
    save(directory, step, model=model, tokenizer=tokenizer, state={"step": step}, keep=2)
"""


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
    saver = subprocess.Popen([sys.executable, "-c", FOREVER, str(directory), str(source)])
    deadline = time.monotonic() + 60
    while latest(directory) is None or not list(directory.glob(".step-*")):
        assert saver.poll() is None
        assert time.monotonic() < deadline
    saver.kill()
    saver.wait()
    left = list(directory.glob("step-*"))
    assert left
    assert all(is_whole(path, model) for path in left)
    newest = latest(directory)
    assert newest is not None
    step = load_state(newest)["step"] + 1
    save(directory, step, model=model, tokenizer=tokenizer, state={"step": step}, keep=1)
    assert names(directory) == [f"step-{step}"]


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    (tmp_path / "step-x").mkdir()
    (tmp_path / ".step-4.partial").mkdir()
    assert latest(tmp_path) is None


def test_a_path_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a checkpoint"):
        checkpoints.load_state(tmp_path / "step-5")
