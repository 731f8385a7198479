"""Checkpoints that are complete or absent, in Hugging Face's layout.

    <directory>/step-<N>/   the model and the tokenizer, loadable with from_pretrained; README.md, its card
                            adapter/: with LoRA, what was trained; the model beside it has it merged
                            trainer.pt: what resuming needs besides
                            complete.json: every file's size but the card's

A checkpoint is written under a hidden name, flushed to the disk, and renamed. Hidden names are
what a crash left behind; the next `save` removes them. A checkpoint whose files are not those of
complete.json (a copy that was cut short, a disk that failed) is broken: neither resumed, counted nor removed.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from envrl.errors import ConfigError
from envrl.model.lora import ADAPTER, is_adapted, save_adapter
from envrl.model.weights import Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CARD = "README.md"
OURS = ("trainer.pt", "complete.json")
"""What a checkpoint holds for envrl alone."""
_STATE, _FILES = OURS


def save(
    directory: Path,
    step: int,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: dict[str, Any],
    keep: int,
    best: int | None = None,
    card: str = "",
) -> Path:
    """Writes `directory`/step-`step`, then removes all but the newest `keep` and the step `best`.

    `state` is plain data and tensors. A checkpoint of the same step is replaced.
    """
    target = directory / f"step-{step}"
    _write(target, model=model, tokenizer=tokenizer, state=state, card=card)
    _prune(directory, keep=keep, best=best)
    return target


def save_weights(target: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes a model and its tokenizer, complete or absent; an older one is replaced."""
    _write(target, model=model, tokenizer=tokenizer)


def latest(directory: Path) -> Path | None:
    """The whole checkpoint of the highest step, or None."""
    return max(_whole(directory), key=step_of, default=None)


def broken(directory: Path) -> list[str]:
    """A line per checkpoint that is not whole."""
    faults = {path: fault(path) for path in sorted(_all(directory), key=step_of)}
    return [f"{path} is ignored: {reason}" for path, reason in faults.items() if reason]


def fault(path: Path) -> str | None:
    """Why a checkpoint is not whole; None where it is."""
    try:
        sizes = json.loads((path / _FILES).read_text("utf-8"))
    except (OSError, ValueError):
        return f"it has no readable {_FILES}"
    for name, size in sizes.items():
        if not (path / name).is_file():
            return f"it has no {name}"
        if (found := (path / name).stat().st_size) != size:
            return f"{name} has {found} bytes of {size}"
    return None


def step_of(path: Path) -> int:
    """The training step after which a checkpoint was written."""
    return int(path.name.removeprefix("step-"))


def is_trained(path: Path) -> bool:
    """Whether a folder is a checkpoint of training, from which it can go on."""
    return (path / _STATE).is_file()


def load_state(path: Path) -> dict[str, Any]:
    """The state saved with a checkpoint, on the CPU. Raises ConfigError where `path` is none."""
    if reason := fault(path):
        raise ConfigError(f"resume: {path} is not a checkpoint ({reason}); give another step-N directory")
    state: dict[str, Any] = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    return state


def _write(
    target: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: dict[str, Any] | None = None,
    card: str = "",
) -> None:
    directory = target.parent
    directory.mkdir(parents=True, exist_ok=True)
    _sweep(directory)
    partial = directory / f".{target.name}.partial"
    _export(partial, model, tokenizer)
    if state is not None:
        torch.save(state, partial / _STATE)
    sizes = {str(f.relative_to(partial)): f.stat().st_size for f in partial.rglob("*") if f.is_file()}
    (partial / _FILES).write_text(json.dumps(sizes, indent=2), "utf-8")
    if card:
        (partial / CARD).write_text(card, "utf-8")
    for path in (*partial.rglob("*"), partial):
        _flush(path)
    if target.exists():
        _remove(target)
    os.replace(partial, target)
    _flush(directory)


def _export(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """What transformers and vLLM load: weights with adapters merged, configs, tokenizer, chat template."""
    if is_adapted(model):
        model.save_pretrained(folder, state_dict={name: value.cpu() for name, value in Weights(model)})
        save_adapter(model, folder / ADAPTER)
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _whole(directory: Path) -> list[Path]:
    return [path for path in _all(directory) if not fault(path)]


def _all(directory: Path) -> list[Path]:
    return [path for path in directory.glob("step-*") if path.name.removeprefix("step-").isdigit()]


def _prune(directory: Path, *, keep: int, best: int | None) -> None:
    for path in sorted(_whole(directory), key=step_of)[:-keep]:
        if step_of(path) != best:
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
