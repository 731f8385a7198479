"""Evaluations as a small table, and as one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from envrl.summary import Evaluation, Summary

_HEADINGS = {"warm_start": "warm start", "grpo": "+ GRPO"}
_NONE = "—"
_NBSP = "\u00a0"
_ABREAST = 2
"""Columns that fit into a terminal with their intervals beside the numbers."""
_UNSCORED = "unscored episodes"


class Block(NamedTuple):
    """The rows of one environment: a name, then one cell per label."""

    env: str
    rows: list[tuple[str, list[str]]]


def table(summary: Summary) -> Table:
    """The final evaluations: a column per label, and a block of rows per environment."""
    evaluations = final(summary)
    names = labels(evaluations)
    made = blocks(evaluations)
    shown = Table(title="evaluation" + (f": {made[0].env}" if len(made) == 1 else ""))
    shown.add_column("", no_wrap=True)
    for label in names:
        shown.add_column(heading(label), justify="right", no_wrap=True)
    gap = " " if len(names) <= _ABREAST else "\n"  # rich would break an interval at any blank in it
    for block in made:
        if len(made) > 1:
            shown.add_row(Text(block.env, style="bold"))
        for name, cells in block.rows:
            shown.add_row(Text(name), *(Text(cell.replace(" [", f"{gap}[")) for cell in cells))
        shown.add_section()
    return shown


def heading(label: str) -> str:
    """A label as a column's heading."""
    return _HEADINGS.get(label, label)


def final(summary: Summary) -> list[Evaluation]:
    """The evaluations around training, without those that were made during it."""
    return [evaluation for evaluation in summary.evaluations if evaluation.get("step") is None]


def labels(evaluations: Sequence[Evaluation]) -> list[str]:
    """The labels in order of appearance."""
    return list(dict.fromkeys(evaluation["label"] for evaluation in evaluations))


def blocks(evaluations: Sequence[Evaluation]) -> list[Block]:
    """A block of rows per environment; unscored episodes are a row only where there are some."""
    columns = labels(evaluations)
    made = []
    for env in dict.fromkeys(evaluation["env"] for evaluation in evaluations):
        found = {evaluation["label"]: evaluation for evaluation in evaluations if evaluation["env"] == env}
        described = {label: _cells(evaluation) for label, evaluation in found.items()}
        names = dict.fromkeys(name for cells in described.values() for name in cells)
        rows = [(name, [described.get(label, {}).get(name, _NONE) for label in columns]) for name in names]
        made.append(Block(env, [row for row in rows if row[0] != _UNSCORED or {*row[1]} - {"0", _NONE}]))
    return made


def success(evaluation: Evaluation) -> str:
    """72.4% [68.3, 76.1]."""
    rate, interval = evaluation["success_rate"], evaluation["success_ci95"]
    if rate is None or interval is None:
        return _NONE
    return f"{rate:.1%} [{interval[0] * 100:.1f},{_NBSP}{interval[1] * 100:.1f}]"


def verdict(summary: Summary) -> str:
    """One sentence: did success rise in training, by how much, and is that more than chance?"""
    evaluations = final(summary)
    names = labels(evaluations)
    if not names:
        return "No evaluation was recorded."
    if len(names) == 1:
        played = "; ".join(f"{_success_words(e)} in {e['env']}" for e in evaluations)
        return f"One evaluation ({heading(names[0])}), so nothing to compare with: {played}."
    before, after = ({e["env"]: e for e in evaluations if e["label"] == name} for name in names[-2:])
    pairs = [(before[env], after[env]) for env in after if env in before]
    if len(pairs) == 1:
        return _change(*pairs[0])
    changes = ", ".join(f"{new['env']} {_short_change(old, new)}" for old, new in pairs)
    return f"Success from {heading(names[-2])} to {heading(names[-1])}: {changes}."


def overlap(before: Evaluation, after: Evaluation) -> bool:
    """Whether the intervals of the success rates share a point."""
    old, new = before["success_ci95"] or [0.0, 1.0], after["success_ci95"] or [0.0, 1.0]
    return old[0] <= new[1] and new[0] <= old[1]


def _change(before: Evaluation, after: Evaluation) -> str:
    old, new = before["success_rate"], after["success_rate"]
    if old is None or new is None:
        rewards = f"from {_number(before['reward_mean'])} to {_number(after['reward_mean'])}"
        return f"Mean reward went {rewards}; {after['env']} does not say what success is."
    points = (new - old) * 100
    if abs(points) < 0.05:
        return f"Success did not change in training: {new:.1%}."
    verb = "rose" if points > 0 else "fell"
    return (
        f"Success {verb} by {abs(points):.1f} points, from {old:.1%} ({heading(before['label'])}) "
        f"to {new:.1%} ({heading(after['label'])}); {_chance(before, after)}."
    )


def _chance(before: Evaluation, after: Evaluation) -> str:
    """Whether the change could be luck: by the paired interval where there is one."""
    change = after.get("change")
    if change is None or change["since"] != before["label"]:
        return f"{'but the' if overlap(before, after) else 'the'} 95% intervals {_apart(before, after)}"
    low, high = change["success_ci95"]
    sure = "leaves out 0" if low > 0 or high < 0 else "includes 0, so it may be chance"
    return (
        f"the 95% interval of the change on the same {change['tasks']} tasks, "
        f"{low * 100:+.1f} to {high * 100:+.1f} points, {sure}"
    )


def _apart(before: Evaluation, after: Evaluation) -> str:
    return "overlap" if overlap(before, after) else "do not overlap"


def _short_change(before: Evaluation, after: Evaluation) -> str:
    old, new = before["success_rate"], after["success_rate"]
    if old is None or new is None:
        return "unknown"
    return f"{(new - old) * 100:+.1f} points (intervals {'overlap' if overlap(before, after) else 'apart'})"


def _success_words(evaluation: Evaluation) -> str:
    if evaluation["success_rate"] is None:
        return f"mean reward {_number(evaluation['reward_mean'])}"
    return f"success {success(evaluation)}"


def _cells(evaluation: Evaluation) -> dict[str, str]:
    cells = {
        "success [95% interval]": success(evaluation),
        "reward": _number(evaluation["reward_mean"]),
        "turns per episode": _number(evaluation["turns_mean"]),
        "invalid actions": _number(evaluation["invalid_actions_mean"]),
        "episodes": str(evaluation["episodes"]),
    }
    if change := evaluation.get("change"):
        low, high = (f"{bound * 100:+.1f}" for bound in change["success_ci95"])
        points = f"{change['success'] * 100:+.1f} points [{low},{_NBSP}{high}]"
        cells["change on the same tasks"] = points
    cells |= {name: _metric(evaluation, name) for name in evaluation["metrics"]}
    cells |= {f"pass@{k}": f"{value:.1%}" for k, value in evaluation.get("pass_at_k", {}).items() if k != "1"}
    return cells | {_UNSCORED: str(evaluation["unscored"])}


def _metric(evaluation: Evaluation, name: str) -> str:
    """2.10 [1.95, 2.25]."""
    mean = f"{evaluation['metrics'][name]:.2f}"
    if name not in evaluation["metrics_ci95"]:
        return mean
    low, high = evaluation["metrics_ci95"][name]
    return f"{mean} [{low:.2f},{_NBSP}{high:.2f}]"


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"
