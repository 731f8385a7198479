"""The command line: Hydra's, with clean errors.

Exit status: 0 done; 1 a stage failed; 2 the composition cannot be run; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from envrl.compose import load, open_key
from envrl.errors import ConfigError, EnvrlError
from envrl.explain import is_refusal, refusal
from envrl.paths import CONF, register_recipes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, or one sweep, and returns its exit status."""
    full_error = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra shall raise instead of printing and exiting
    register_recipes()
    _import_from_here()
    sys.argv[1:] = _opened(sys.argv[1:] if arguments is None else arguments)
    statuses: list[int] = []

    @hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    def app(cfg: DictConfig) -> None:
        statuses.append(_job(cfg))

    try:
        app()
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143
    except Exception as error:  # Hydra mixes error types; those that are no refusal pass through
        if full_error or not is_refusal(error):
            raise
        return _complain(refusal(error), 2)
    failed = [str(job) for job, status in enumerate(statuses) if status]
    if failed and len(statuses) > 1:
        _complain(f"{len(failed)} of {len(statuses)} jobs failed: {', '.join(failed)}", 1)
    return max(statuses, default=0)


def _job(cfg: DictConfig) -> int:
    """One run. An exception that nobody expected passes through: Hydra goes on with a sweep's other jobs."""
    job = HydraConfig.get()
    what = f"job {job.job.num}: " if job.mode is RunMode.MULTIRUN else ""
    try:
        spec = load(cfg)
        from envrl.pipeline import run  # heavy, so only for a spec that is valid

        run(spec)
    except ConfigError as error:
        return _complain(f"{what}{error}", 2)
    except EnvrlError as error:
        return _complain(f"{what}{error}", 1)
    return 0


def _opened(arguments: Sequence[str]) -> list[str]:
    """Keys are judged by the spec, except where Hydra only shows the composition and nobody judges it."""
    showing = any(argument in ("--cfg", "-c") or argument.startswith("--cfg=") for argument in arguments)
    return [open_key(argument, known_only=showing) for argument in arguments]


def _import_from_here() -> None:
    """A console script, unlike `python -m`, does not import from the working directory."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())


def _complain(text: str, status: int) -> int:
    print("envrl: " + text.replace("\n", "\n       "), file=sys.stderr)
    return status
