"""The run directory: who may write into it, and where a run that was cut short goes on."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from envrl.errors import ConfigError
from envrl.spec import UNDIGESTED, RunSpec, digest
from envrl.tracking import write_whole


def is_main() -> bool:
    """Whether this process is the one of its launch that writes (rank 0)."""
    return int(os.environ.get("RANK", "0")) == 0


def open_run(spec: RunSpec) -> Path:
    """Makes the run directory, or takes up one that holds the same spec. The main process calls it.

    `resume=never` moves an older directory aside. Raises ConfigError where the directory holds
    another run.
    """
    directory = spec.output_dir
    try:
        if spec.resume == "never":
            _move_aside(directory)
        elif directory.exists():
            _refuse_foreign(directory, spec)
        directory.mkdir(parents=True, exist_ok=True)
        dumped = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_whole(directory / "spec.yaml", dumped)
    except OSError as error:
        raise ConfigError(f"output_dir={directory}: {error.strerror}; give another output_dir=…") from error
    return directory


def _move_aside(directory: Path) -> None:
    if not directory.exists():
        return
    if Path.cwd().is_relative_to(directory.resolve()):
        raise ConfigError(
            f"output_dir={directory}: the working directory is in it; give another output_dir=…"
        )
    free = next(p for n in count(1) if not (p := directory.with_name(f"{directory.name}.old-{n}")).exists())
    directory.rename(free)


def _refuse_foreign(directory: Path, spec: RunSpec) -> None:
    if not directory.is_dir():
        raise ConfigError(f"output_dir={directory}: not a directory; give another output_dir=…")
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
