"""report.html: one self-contained page about one run, finished or not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from envrl.progress import span
from envrl.report.charts import Line, figures
from envrl.report.episodes import message_text, overview, sample
from envrl.report.table import blocks, final, heading, labels, verdict
from envrl.summary import Evaluation, Summary
from envrl.tracking import read_jsonl, write_whole

_NOTED = 20
"""Warnings of run.log that are shown."""
_WARNING = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
_PLOT = {"displayModeBar": False, "responsive": True}


def render(directory: Path) -> Path:
    """Writes report.html from whatever the run directory holds so far."""
    summary = Summary.read(directory) or Summary(spec_digest="")
    lines = read_jsonl(directory / "metrics.jsonl")
    seen = overview(directory / "episodes.jsonl")
    evaluations = final(summary)
    drawn = figures(lines, summary.evaluations)
    page = _template().render(
        name=directory.resolve().name,
        summary=summary,
        verdict=verdict(summary),
        labels=[heading(label) for label in labels(evaluations)],
        blocks=blocks(evaluations),
        stops=stops(evaluations),
        charts=[(title, _chart(figure, number)) for number, (title, figure) in enumerate(drawn)],
        # Our own library, not data; the closing tags in it are escaped by plotly.
        plotlyjs=Markup(get_plotlyjs()) if drawn else None,
        steps=lines[-1]["step"] if lines else None,
        times=times(summary, lines),
        notes=notes(lines),
        errors=seen.errors.most_common(10),
        logged=_warnings(directory / "run.log"),
        episodes=sample(directory / "episodes.jsonl", seen),
        spec=_text(directory / "spec.yaml"),
    )
    path = directory / "report.html"
    write_whole(path, page)
    return path


def times(summary: Summary, lines: Sequence[Line]) -> list[tuple[str, str, float]]:
    """Where the time went: a name, the time as text, and its share of the longest."""
    steps, rollout, update = (
        sum(line.get(key) or 0.0 for line in lines)
        for key in ("time/step_s", "time/rollout_s", "time/update_s")
    )
    parts = {"rollout": rollout, "update": update, "the rest": steps - rollout - update}
    spent = summary.stage_s | {f"steps: {name}": part for name, part in parts.items() if part > 0}
    longest = max(spent.values(), default=0.0) or 1.0
    return [(name, span(seconds), seconds / longest) for name, seconds in spent.items()]


def stops(evaluations: Sequence[Evaluation]) -> list[tuple[str, list[str]]]:
    """A row per stop reason: its share of the episodes under each label, over all environments."""
    columns = labels(evaluations)
    played = {label: [e for e in evaluations if e["label"] == label] for label in columns}
    reasons = sorted({reason for evaluation in evaluations for reason in evaluation["stops"]})
    return [(reason, [_stop_share(played[label], reason) for label in columns]) for reason in reasons]


def notes(lines: Sequence[Line]) -> list[str]:
    """What in the metrics deserves a second look."""
    if not lines:
        return []
    found = []
    flat = [line["frac_zero_std"] for line in lines if line.get("frac_zero_std") is not None]
    if flat and (mean := sum(flat) / len(flat)) > 0.5:
        found.append(f"{mean:.0%} of the groups had no variance in reward, so they taught nothing.")
    drift = max((line.get("kl_engine") or 0.0 for line in lines), default=0.0)
    if drift > 0.1:
        found.append(f"The engine's log-probabilities strayed from the trainer's: KL up to {drift:.3g}.")
    failed = sum(line.get("episodes/errors") or 0 for line in lines)
    if failed:
        found.append(f"{failed:,.0f} training episodes ended as error and were trained on by nobody.")
    broken = [str(line["step"]) for line in lines if "grad_norm" in line and line["grad_norm"] is None]
    if broken:
        found.append(f"The gradient norm was not finite at step {', '.join(broken[:10])}.")
    return found


def _stop_share(evaluations: Sequence[Evaluation], reason: str) -> str:
    total = sum(e["episodes"] for e in evaluations)
    return f"{sum(e['stops'].get(reason, 0) for e in evaluations) / total:.1%}" if total else "—"


def _template() -> Any:
    """The page's template. What a model or a user wrote is data: everything is escaped."""
    folder = FileSystemLoader(Path(__file__).parent)
    jinja = Environment(loader=folder, autoescape=True, undefined=StrictUndefined)
    jinja.trim_blocks = jinja.lstrip_blocks = True
    jinja.filters["message_text"] = message_text
    jinja.filters["heading"] = heading
    return jinja.get_template("page.html.j2")


def _chart(figure: Any, number: int) -> Markup:
    html = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        config=_PLOT,
        div_id=f"chart-{number}",
        default_height="15rem",
    )
    return Markup(html)  # plotly escapes the names in it


def _warnings(path: Path) -> list[str]:
    return [line for line in _text(path).split("\n") if _WARNING.search(line)][-_NOTED:]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
