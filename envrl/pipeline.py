"""Runs spec.stages in order over one Run."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from importlib import import_module
from pathlib import Path

from rich.console import Console

from envrl.errors import EnvrlError, StageError
from envrl.progress import Progress
from envrl.report.table import table
from envrl.rundir import is_main, open_run
from envrl.spec import RunSpec
from envrl.summary import Summary
from envrl.tracking import Tracker

log = logging.getLogger("envrl")


def run(spec: RunSpec) -> Summary:
    """Runs, resumes, or, where it is finished, just shows a run; returns its summary.

    Raises ConfigError where the run directory holds another run, StageError where a stage fails; the
    summary then says so, and what was done stays.
    """
    directory = open_run(spec)
    summary = Summary.read(directory) or Summary(spec.digest)
    console = Console(quiet=not is_main())
    if summary.status == "ok" and len(summary.stages) == len(spec.stages):
        console.print(f"{directory} is finished; resume=never runs it again")
    else:
        _run_stages(spec, directory, summary)
    if summary.evaluations:
        console.print(table(summary))
    if (directory / "report.html").exists():
        console.print(f"report: {directory / 'report.html'}", soft_wrap=True)
    return summary


def _run_stages(spec: RunSpec, directory: Path, summary: Summary) -> None:
    summary.status, summary.error = "running", None
    handler = _log_file(directory)
    try:
        asyncio.run(_stages(spec, directory, summary))
        summary.status = "ok"
    except BaseException as error:
        summary.status = "failed"
        summary.error = f"{type(error).__name__}: {error}".rstrip(": ")
        log.exception("the run failed")
        if isinstance(error, EnvrlError) or not isinstance(error, Exception):
            raise
        raise StageError(f"{summary.error}; the traceback is in {directory / 'run.log'}") from error
    finally:
        _save(summary, directory)
        log.removeHandler(handler)
        handler.close()


async def _stages(spec: RunSpec, directory: Path, summary: Summary) -> None:
    """The walk itself. Heavy modules are imported when the first stage needs them."""
    from envrl.stage.run import Run

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    run = Run(spec, directory, summary, Tracker(directory, writes=is_main()), Progress())
    try:
        for stage in spec.stages[len(summary.stages) :]:
            log.info("stage %s", stage)
            started = time.perf_counter()
            await import_module(f"envrl.stage.{stage}").run(run)
            summary.stages.append(stage)
            summary.stage_s[stage] = summary.stage_s.get(stage, 0.0) + time.perf_counter() - started
            _save(summary, directory)
    finally:
        await run.close()


def _save(summary: Summary, directory: Path) -> None:
    if is_main():
        summary.write(directory)


def _log_file(directory: Path) -> logging.Handler:
    """run.log, which gets everything that envrl logs."""
    handler = logging.FileHandler(directory / "run.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    return handler
