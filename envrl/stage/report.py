"""Writes report.html."""

from __future__ import annotations

from envrl.launch import is_main
from envrl.report.page import render
from envrl.stage.base import Run


async def run(run: Run) -> None:
    """The page over what the run has written so far."""
    if is_main():
        run.summary.write(run.directory)
        render(run.directory)
