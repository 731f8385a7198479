"""Runs spec.stages in order over one Run."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from envrl.engine.vllm import environment
from envrl.errors import EnvrlError, StageError
from envrl.grpo.settings import biases
from envrl.launch import from_main, is_main
from envrl.report.table import final, table
from envrl.rundir import open_run
from envrl.spec import RunSpec, Stage
from envrl.summary import Summary

if TYPE_CHECKING:
    from envrl.stage.base import Run

log = logging.getLogger("envrl")


def run(spec: RunSpec) -> Summary:
    """Runs, resumes, or, where it is finished, just shows a run; returns its summary.

    Raises ConfigError where the run directory holds another run, StageError where a stage fails; the
    summary then says so, and what was done stays. Every rank of a launch calls it.
    """
    if spec.vllm_mode.kind == "colocate":
        environment.prepare(threads=spec.threads)
    with open_run(spec) if is_main() else nullcontext():
        return _run(spec)


def _run(spec: RunSpec) -> Summary:
    summary = from_main(Summary.read(spec.output_dir) or Summary(spec.digest) if is_main() else None)
    console = Console(quiet=not is_main())
    if summary.status == "ok" and len(summary.stages) == len(spec.stages):
        console.print(f"{spec.output_dir} is finished; resume=never runs it again")
    else:
        _run_stages(spec, summary)
    if final(summary):
        console.print(table(summary))
    if (spec.output_dir / "report.html").exists():
        console.print(f"report: {spec.output_dir / 'report.html'}", soft_wrap=True)
    return summary


def _run_stages(spec: RunSpec, summary: Summary) -> None:
    summary.status, summary.error = "running", None
    with _log_file(spec.output_dir):
        try:
            _finish(_stages(spec, summary))
            summary.status = "ok"
        except BaseException as error:
            summary.status = "failed"
            summary.error = f"{type(error).__name__}: {error}".rstrip(": ")
            log.exception("the run failed")
            if isinstance(error, StageError) or not isinstance(error, Exception):
                raise
            if isinstance(error, EnvrlError):
                raise StageError(str(error)) from error
            log_file = spec.output_dir / "run.log"
            raise StageError(f"{summary.error}; the traceback is in {log_file}") from error
        finally:
            _save(summary, spec.output_dir)


def _finish(walk: Coroutine[Any, Any, None]) -> None:
    """Runs the walk in an event loop of its own, in a thread where the caller has one (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(walk)
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, walk).result()


async def _stages(spec: RunSpec, summary: Summary) -> None:
    """The walk itself. Heavy modules are imported when the first stage needs them."""
    from envrl.stage.base import Run

    task = asyncio.current_task()
    assert task is not None
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    run = Run(spec, summary)
    _warn(run)
    try:
        for stage in spec.stages[len(summary.stages) :]:
            log.info("stage %s", stage)
            started = time.perf_counter()
            await import_module(f"envrl.stage.{stage}").run(run)
            summary.stages.append(stage)
            summary.stage_s[stage] = summary.stage_s.get(stage, 0.0) + time.perf_counter() - started
            _save(summary, spec.output_dir)
        import_module("envrl.stage.export").finish(run)
    finally:
        await run.close()


def _warn(run: Run) -> None:
    """Tells of broken checkpoints, and of settings that bias the training, before any time is spent on it."""
    found = run.broken_checkpoints() if is_main() else []
    for line in [*found, *(biases(run.spec) if Stage.TRAIN in run.spec.stages else ())]:
        run.progress.log(f"warning: {line}")
        log.warning(line)


def _save(summary: Summary, directory: Path) -> None:
    if is_main():
        summary.write(directory)


@contextmanager
def _log_file(directory: Path) -> Iterator[None]:
    """run.log, which gets everything that the main process logs under `envrl`."""
    handler = (
        logging.FileHandler(directory / "run.log", encoding="utf-8") if is_main() else logging.NullHandler()
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
