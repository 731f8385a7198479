"""Live progress: a bar per stage on a terminal, plain lines now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

Value = float | int | str | None
Clock = Callable[[], float]

_EVERY_S = 5.0
"""Between two plain lines of a stage."""


class Progress:
    """What a person sees while a run goes on. Writes to stderr, so stdout stays free for results."""

    def __init__(self, console: Console | None = None, *, clock: Clock = time.monotonic) -> None:
        self.console = console or Console(stderr=True)
        # rich lets FORCE_COLOR and friends make a terminal of a file; a bar is for terminals alone.
        terminal = self.console.is_terminal and self.console.file.isatty()
        self.live = terminal and not self.console.is_dumb_terminal
        self._clock = clock
        self._tasks: dict[Bar, TaskID] = {}
        self._rich: RichProgress | None = None

    @contextmanager
    def stage(self, name: str, *, total: int | None = None, unit: str = "", done: int = 0) -> Iterator[Bar]:
        """Shows a stage while the block runs. `done` is what an earlier run did already.

        Stages may be nested: an evaluation inside training.
        """
        bar = Bar(name, total=total, unit=unit, done=done, clock=self._clock, show=self._show)
        if self.live:
            self._tasks[bar] = self._start().add_task(name, total=total, completed=done, bar=bar)
        try:
            yield bar
        finally:
            bar.finished = True
            self._close(bar)

    def log(self, text: str) -> None:
        """Prints a line above the bars; its brackets are text, not markup."""
        self.console.print(Text(text), soft_wrap=True)

    def _start(self) -> RichProgress:
        if self._rich is None:
            self._rich = RichProgress(
                TextColumn("{task.description}", style="bold", markup=False),
                BarColumn(bar_width=8 if self.console.width < 100 else 24),
                _Line(),
                console=self.console,
                refresh_per_second=4,
                # Printed text belongs above the bars, unless stdout goes elsewhere.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._rich.start()
        return self._rich

    def _show(self, bar: Bar) -> None:
        if self._rich is not None:
            self._rich.update(self._tasks[bar], completed=bar.done)
        elif self._clock() - bar.said_at >= _EVERY_S:
            self._say(bar)

    def _say(self, bar: Bar) -> None:
        bar.said_at = self._clock()
        self.log(f"{bar.name}: {bar.line()}")

    def _close(self, bar: Bar) -> None:
        if self._rich is None:
            self._say(bar)
            return
        self._rich.update(self._tasks[bar], completed=bar.done)
        task = self._tasks.pop(bar)
        if self._tasks:
            self._rich.remove_task(task)
        else:
            self._rich.stop()
            self._rich = None


class Bar:
    """One stage's progress."""

    def __init__(
        self, name: str, *, total: int | None, unit: str, done: int, clock: Clock, show: Callable[[Bar], None]
    ) -> None:
        self.name = name
        self.total = total
        self.unit = unit
        self.done = done
        self.values: dict[str, Value] = {}
        self.finished = False
        self._clock = clock
        self._show = show
        self._done_before = done
        self._began = self.said_at = clock()

    def advance(self, n: int = 1, **values: Value) -> None:
        """Counts n more units; the values (reward=…, success=…, tokens_per_s=…) replace those shown."""
        self.done += n
        self.values.update(values)
        self._show(self)

    def line(self) -> str:
        """All of it as text: 12/120 steps · 2:13 left · reward 0.41 · success 38% · 1,234 tokens/s."""
        count = f"{self.done}" if self.total is None else f"{self.done}/{self.total}"
        return " · ".join(filter(None, [f"{count} {self.unit}".strip(), self._time(), *shown(self.values)]))

    def _time(self) -> str:
        """Time left at this stage's mean pace; time taken once it is over or where there is no total."""
        elapsed, fresh = self._clock() - self._began, self.done - self._done_before
        if self.finished or self.total is None:
            return span(elapsed)
        return f"{span(elapsed / fresh * max(0, self.total - self.done))} left" if fresh > 0 else ""


class _Line(ProgressColumn):
    """The text of a bar, made anew at each refresh so that the time runs on."""

    def render(self, task: Task) -> Text:
        bar: Bar = task.fields["bar"]
        return Text(bar.line(), no_wrap=True, overflow="ellipsis")


def shown(values: Mapping[str, Value]) -> list[str]:
    """Values as people read them; None is left out."""
    return [_value(name, value) for name, value in values.items() if value is not None]


def span(seconds: float) -> str:
    """A duration as 0:07, 2:13 or 1:02:13."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def _value(name: str, value: float | int | str) -> str:
    if isinstance(value, str):
        return f"{name} {value}"
    if name == "tokens_per_s":
        return f"{value:,.0f} tokens/s"
    return f"success {value:.0%}" if name == "success" else f"{name.replace('_', ' ')} {value:.3g}"
