"""The run directory: who may write into it, and where a run that was cut short goes on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from envrl.errors import ConfigError
from envrl.rollout.dataset import local_file
from envrl.spec import UNDIGESTED, RunSpec, digest
from envrl.tracking import write_whole

ROWS = "datasets.json"
"""What was in the datasets, where there are any."""


@contextmanager
def open_run(spec: RunSpec) -> Iterator[None]:
    """Makes the run directory, or takes up one that holds the same spec, and holds it while the block runs.

    `resume=never` moves an older directory aside. The main process calls it. Raises ConfigError where the
    directory holds another run, or another process is at work in it.
    """
    directory, afresh = spec.output_dir, spec.resume == "never"
    with ExitStack() as held:
        try:
            if afresh and directory.is_dir():
                held.enter_context(_locked(directory))
                _move_aside(directory)
            directory.mkdir(parents=True, exist_ok=True)
            held.enter_context(_locked(directory))
            fingerprints = _fingerprints(spec)
            if not afresh:
                _refuse_foreign(directory, spec)
                _refuse_other_rows(directory, spec, fingerprints)
            if fingerprints:
                write_whole(directory / ROWS, json.dumps(fingerprints, indent=2) + "\n")
            dumped = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
            write_whole(directory / "spec.yaml", dumped)
        except OSError as error:
            raise ConfigError(
                f"output_dir={directory}: {error.strerror}; give another output_dir=…"
            ) from error
        yield


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds a directory for this process; the lock follows it when it is renamed and dies with its owner."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"output_dir={directory}: another process is at work there; give another output_dir=…"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _move_aside(directory: Path) -> None:
    if any(directory.iterdir()) and not (directory / "spec.yaml").exists():
        raise ConfigError(f"output_dir={directory}: not empty and no run; give another output_dir=…")
    if Path.cwd().is_relative_to(directory.resolve()):
        raise ConfigError(
            f"output_dir={directory}: the working directory is in it; give another output_dir=…"
        )
    free = next(p for n in count(1) if not (p := directory.with_name(f"{directory.name}.old-{n}")).exists())
    directory.rename(free)


def _refuse_foreign(directory: Path, spec: RunSpec) -> None:
    if not any(directory.iterdir()):
        return
    old = _read_spec(directory)
    if old is None:
        raise ConfigError(f"output_dir={directory}: not empty and no run; give another output_dir=…")
    if digest(old) == spec.digest:
        return
    changed = [
        f"  {key}: {was!r} there, {now!r} now"
        for key, was, now in _differences(old, spec.model_dump(mode="json"))
    ]
    raise ConfigError(
        "\n".join(
            [
                f"output_dir={directory}: holds another run; give another output_dir=… or resume=never",
                *changed,
            ]
        )
    )


def _refuse_other_rows(directory: Path, spec: RunSpec, fingerprints: dict[str, str]) -> None:
    """The digest holds a dataset's name; what was in it is kept beside the spec."""
    path = directory / ROWS
    old = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for key, fingerprint in fingerprints.items():
        if old.get(key, fingerprint) != fingerprint:
            raise ConfigError(
                f"env.{key}.dataset: {spec.env[key].dataset!r} has changed since {directory} was begun; "
                "give another output_dir=… or resume=never"
            )


def _fingerprints(spec: RunSpec) -> dict[str, str]:
    """SHA-256 of the dataset of each environment that has a local one."""
    files = {key: local_file(env.dataset) for key, env in spec.env.items() if env.dataset is not None}
    return {key: sha256(file.read_bytes()).hexdigest() for key, file in files.items() if file is not None}


def _read_spec(directory: Path) -> dict[str, Any] | None:
    try:
        loaded = yaml.safe_load((directory / "spec.yaml").read_text("utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    return loaded if isinstance(loaded, dict) else None


def _differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two specs differ, as dotted override paths."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            difference
            for key in keys
            for difference in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if old == new or path.partition(".")[0] in UNDIGESTED else [(path, old, new)]
