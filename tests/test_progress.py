"""Plain lines for files, bars for terminals, and neither in each other's way."""

from __future__ import annotations

import asyncio
from io import StringIO

import pytest
from rich.console import Console

from envrl.progress import Progress, shown, span


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_file_gets_few_plain_lines_and_always_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out, clock = StringIO(), Clock()
    with Progress(Console(file=out), clock=clock).stage("train", total=60, unit="steps") as bar:
        for _ in range(60):
            clock.now += 0.2
            bar.advance(reward=0.5, success=0.25, tokens_per_s=12345.6, kl=None)
    assert out.getvalue().splitlines() == [
        "train: 25/60 steps · 0:07 left · reward 0.5 · success 25% · 12,346 tokens/s",
        "train: 50/60 steps · 0:02 left · reward 0.5 · success 25% · 12,346 tokens/s",
        "train: 60/60 steps · 0:12 · reward 0.5 · success 25% · 12,346 tokens/s",
    ]
    assert "\x1b" not in out.getvalue()


def test_time_left_counts_only_what_this_run_did() -> None:
    out, clock = StringIO(), Clock()
    with Progress(Console(file=out), clock=clock).stage("train", total=100, done=90) as bar:
        clock.now += 10
        bar.advance(5)
    assert "train: 95/100 · 0:10 left" in out.getvalue()


def test_a_stage_without_a_total_shows_the_time_taken() -> None:
    out, clock = StringIO(), Clock()
    with Progress(Console(file=out), clock=clock).stage("check", unit="episodes") as bar:
        clock.now += 6
        bar.advance(3)
    assert out.getvalue().splitlines()[0] == "check: 3 episodes · 0:06"


def test_a_long_warning_with_brackets_is_one_line_as_written() -> None:
    out = StringIO()
    text = "warning: [red]env[/red] [0, 1] " + "x" * 200
    Progress(Console(file=out, width=80)).log(text)
    assert out.getvalue() == text + "\n"


def test_a_terminal_gets_bars_that_nest_and_are_taken_down() -> None:
    out = Terminal()
    progress = Progress(Console(file=out, force_terminal=True, width=120))

    async def run() -> None:
        with progress.stage("train", total=2, unit="steps") as train:
            train.advance(reward=0.5)
            with progress.stage("evaluate", total=1) as evaluate:
                evaluate.advance()
            progress.log("a warning")
            train.advance(reward=0.75)

    asyncio.run(run())
    assert progress.live
    for part in ("evaluate", "a warning\n", "2/2 steps", "reward 0.75"):
        assert part in out.getvalue()
    assert out.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"


def test_a_failure_takes_the_bar_down_and_goes_on_its_way() -> None:
    out = Terminal()
    progress = Progress(Console(file=out, force_terminal=True))
    with pytest.raises(KeyboardInterrupt), progress.stage("train", total=2):
        raise KeyboardInterrupt
    assert out.getvalue().endswith("\x1b[?25h")
    with progress.stage("again"):
        pass


def test_values_are_shown_as_people_read_them() -> None:
    assert shown({"loss": 0.01234, "grad_norm": 12.3456, "env": "lake", "none": None}) == [
        "loss 0.0123",
        "grad norm 12.3",
        "env lake",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (133, "2:13"), (3733, "1:02:13")])
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text
