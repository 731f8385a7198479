"""Curves over training steps, from the lines of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import plotly.graph_objects as go

from envrl.summary import Evaluation

Line = Mapping[str, Any]
"""One line of metrics.jsonl."""

_COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7", "#14b8a6", "#ec4899", "#84cc16")
_GREY = "#808080"
_FEW = 40
"""Up to so many steps, each is marked by a dot."""


class Chart(NamedTuple):
    """Metrics that share an axis, by patterns of their names."""

    title: str
    unit: str
    patterns: tuple[str, ...]
    stacked: bool = False


SUCCESS = Chart("Success", "share of episodes", ("success", "env/*/success"))
CHARTS = (
    Chart("Reward", "per episode", ("reward", "env/*/reward", "rewards/*/mean")),
    SUCCESS,
    Chart("Entropy", "nats per token", ("entropy",)),
    Chart("KL between engine and trainer", "nats per token", ("kl_engine",)),
    Chart("KL to the weights that GRPO began with", "nats per token", ("kl_reference",)),
    Chart("Gradient norm", "before clipping", ("grad_norm",)),
    Chart("Clipped tokens, groups without variance", "share", ("clip_ratio/*", "frac_zero_std")),
    Chart("Length of completions", "tokens", ("completions/mean_length", "completions/max_length")),
    Chart("Turns", "per episode", ("turns/mean",)),
    Chart("How episodes end", "share", ("stop/*",), stacked=True),
    Chart(
        "Tool calls", "per episode; share that failed", ("tools/call_frequency", "tools/failure_frequency")
    ),
    Chart("Time of a step", "seconds", ("time/rollout_s", "time/update_s", "time/push_s"), stacked=True),
    Chart(
        "Time of an episode",
        "seconds",
        tuple(f"time/episode/{part}_s" for part in ("queue", "prefill", "decode", "environment", "parse")),
        stacked=True,
    ),
    Chart("Episodes in flight", "at once", ("rollout/inflight_*",)),
    Chart("Throughput", "tokens per second", ("tokens_per_s",)),
)


def figures(lines: Sequence[Line], evaluations: Sequence[Evaluation] = ()) -> list[tuple[str, go.Figure]]:
    """Title and figure of each chart that has data; evaluations made in training join the success chart."""
    made = []
    for chart in CHARTS:
        traces = _traces(chart, lines)
        if chart is SUCCESS:
            traces += _held_out(evaluations)
        if traces:
            made.append((f"{chart.title}, {chart.unit}", _figure(chart, traces)))
    return made


def series(chart: Chart, lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """The chart's metrics by name, one value per line; one that repeats another is left out."""
    names = sorted({name for line in lines for name in line})
    chosen = dict.fromkeys(name for pattern in chart.patterns for name in names if fnmatchcase(name, pattern))
    found: dict[str, list[float | None]] = {}
    for name in chosen:
        values = [line.get(name) for line in lines]
        if values not in found.values() and any(value is not None for value in values):
            found[name] = values
    return found


def _traces(chart: Chart, lines: Sequence[Line]) -> list[go.Scatter]:
    steps = [line["step"] for line in lines]
    mode = "lines+markers" if len(lines) <= _FEW else "lines"
    stack = {"stackgroup": "all"} if chart.stacked else {}
    return [
        go.Scatter(
            x=steps,
            y=values,
            name=name,
            mode=mode,
            line={"color": colour, "width": 1.6},
            marker={"size": 4},
            **stack,
        )
        for (name, values), colour in zip(series(chart, lines).items(), _cycle(), strict=False)
    ]


def _held_out(evaluations: Sequence[Evaluation]) -> list[go.Scatter]:
    """Evaluations made in training, one trace per environment, with their intervals."""
    during = [e for e in evaluations if e.get("step") is not None and e["success_ci95"] is not None]
    traces = []
    for env, colour in zip(dict.fromkeys(e["env"] for e in during), reversed(_cycle()), strict=False):
        own = [(e["step"], e["success_rate"], *(e["success_ci95"] or ())) for e in during if e["env"] == env]
        steps, rates, lows, highs = zip(*sorted(own), strict=True)
        bars = {
            "array": [high - rate for rate, high in zip(rates, highs, strict=True)],
            "arrayminus": [rate - low for rate, low in zip(rates, lows, strict=True)],
        }
        marker = {"color": colour}
        held_out = go.Scatter(x=steps, y=rates, error_y=bars, mode="markers", marker=marker)
        traces.append(held_out.update(name=f"held out: {env}"))
    return traces


def _figure(chart: Chart, traces: Sequence[go.Scatter]) -> go.Figure:
    """A figure without a background or text colour of its own: the page's style gives both."""
    axis = {
        "gridcolor": "rgba(128,128,128,.22)",
        "zerolinecolor": "rgba(128,128,128,.4)",
        "automargin": True,
        "exponentformat": "e",
    }
    figure = go.Figure(traces)
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12, "color": _GREY},
        margin={"l": 44, "r": 8, "t": 8, "b": 32},
        showlegend=len(traces) > 1,
        legend={"orientation": "h", "y": -0.18, "font": {"size": 11}},
        hovermode="x unified",
        hoverlabel={"bgcolor": "#222", "font": {"color": "#eee"}},
        xaxis={**axis, "title": None},
        yaxis={**axis, "rangemode": "tozero" if chart.stacked else "normal"},
    )
    return figure


def _cycle() -> tuple[str, ...]:
    return _COLOURS * 4
