"""Checkpoints that are complete or absent, in Hugging Face's layout.

    <directory>/step-<N>/   the model and the tokenizer, loadable with from_pretrained
                            trainer.pt: what resuming needs besides

A checkpoint is written under a hidden name, flushed to the disk, and renamed. Hidden names are
what a crash left behind; the next `save` removes them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from envrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_STATE = "trainer.pt"


def save(
    directory: Path,
    step: int,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: dict[str, Any],
    keep: int,
    best: int | None = None,
) -> Path:
    """Writes `directory`/step-`step`, then removes all but the newest `keep` and the step `best`.

    `state` is plain data and tensors. A checkpoint of the same step is replaced.
    """
    target = directory / f"step-{step}"
    _write(target, model=model, tokenizer=tokenizer, state=state)
    _prune(directory, keep=keep, best=best)
    return target


def save_weights(target: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes a model and its tokenizer, complete or absent; an older one is replaced."""
    _write(target, model=model, tokenizer=tokenizer)


def latest(directory: Path) -> Path | None:
    """The checkpoint of the highest step, or None."""
    return max(_all(directory), key=_step, default=None)


def is_trained(path: Path) -> bool:
    """Whether a folder is a checkpoint of training, from which it can go on."""
    return (path / _STATE).is_file()


def load_state(path: Path) -> dict[str, Any]:
    """The state saved with a checkpoint, on the CPU. Raises ConfigError where `path` is none."""
    if not is_trained(path):
        raise ConfigError(f"resume: {path} is not a checkpoint (it has no {_STATE}); give a step-N directory")
    state: dict[str, Any] = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    return state


def _write(
    target: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: dict[str, Any] | None = None,
) -> None:
    directory = target.parent
    directory.mkdir(parents=True, exist_ok=True)
    _sweep(directory)
    partial = directory / f".{target.name}.partial"
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    if state is not None:
        torch.save(state, partial / _STATE)
    for path in (*partial.rglob("*"), partial):
        _flush(path)
    if target.exists():
        _remove(target)
    os.replace(partial, target)
    _flush(directory)


def _all(directory: Path) -> list[Path]:
    return [path for path in directory.glob("step-*") if path.name.removeprefix("step-").isdigit()]


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _prune(directory: Path, *, keep: int, best: int | None) -> None:
    for path in sorted(_all(directory), key=_step)[:-keep]:
        if _step(path) != best:
            _remove(path)


def _remove(path: Path) -> None:
    """Hides a checkpoint before deleting it, so that one deleted halfway is never taken for whole."""
    hidden = path.with_name(f".{path.name}.removed")
    os.replace(path, hidden)
    shutil.rmtree(hidden)


def _sweep(directory: Path) -> None:
    for leftover in (*directory.glob(".*.partial"), *directory.glob(".*.removed")):
        shutil.rmtree(leftover)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
