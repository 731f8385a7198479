"""The final table and the sentence above it."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from envrl.report.table import table, verdict
from envrl.summary import Evaluation, Summary, evaluation_of


def played(label: str, solved: int, *, env: str = "lake", n: int = 100, **changes: Any) -> Evaluation:
    records = [
        {
            "group": i,
            "seed": i,
            "success": i < solved,
            "reward": float(i < solved),
            "stop": "done",
            "turns": [],
            "metrics": {},
        }
        for i in range(n)
    ]
    return evaluation_of([record | changes for record in records], label, env)


def summary(*evaluations: Evaluation) -> Summary:
    return Summary("digest", evaluations=list(evaluations))


def text(shown: Summary, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width).print(table(shown))
    return out.getvalue()


def test_the_table_has_a_column_per_label_and_the_interval() -> None:
    shown = text(summary(played("warm_start", 30), played("grpo", 70)))
    for part in (
        "warm start",
        "+ GRPO",
        "lake",
        "30.0% [21.9,",
        "39.6]",
        "0.700",
        "turns per episode",
        "invalid actions",
    ):
        assert part in shown
    assert "unscored" not in shown


def test_several_environments_have_a_block_each_and_gaps_are_dashes() -> None:
    shown = text(
        summary(
            played("warm_start", 3, env="[red]a"), played("grpo", 4, env="[red]a"), played("grpo", 5, env="b")
        )
    )
    assert "[red]a" in shown
    assert "—" in shown


def test_unscored_episodes_are_a_row_where_there_are_any() -> None:
    broken = played("grpo", 0, stop="error", success=None, reward=None)
    assert "unscored episodes" in text(summary(played("warm_start", 30), broken))


def test_evaluations_during_training_are_no_column() -> None:
    during: Evaluation = {**played("during", 50), "step": 10}
    assert "during" not in text(summary(played("warm_start", 30), during, played("grpo", 70)))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            30,
            70,
            "rose by 40.0 points, from 30.0% (warm start) to 70.0% (+ GRPO); the 95% intervals do not",
        ),
        (
            30,
            35,
            "rose by 5.0 points, from 30.0% (warm start) to 35.0% (+ GRPO); but the 95% intervals overlap",
        ),
        (70, 30, "fell by 40.0 points"),
        (30, 30, "did not change"),
    ],
)
def test_the_verdict_says_what_changed_and_whether_that_is_chance(
    before: int, after: int, words: str
) -> None:
    assert words in verdict(summary(played("warm_start", before), played("grpo", after)))


def test_the_verdict_compares_the_last_two_labels() -> None:
    found = verdict(summary(played("untrained", 1), played("warm_start", 30), played("grpo", 70)))
    assert "40.0 points" in found


def test_the_verdict_over_several_environments_names_each() -> None:
    found = verdict(
        summary(
            *(played("warm_start", 30, env=env) for env in "ab"),
            played("grpo", 70, env="a"),
            played("grpo", 33, env="b"),
        )
    )
    assert "a +40.0 points (intervals apart), b +3.0 points (intervals overlap)" in found


def test_the_verdict_without_success_speaks_of_reward() -> None:
    pair = [played(label, solved, success=None) for label, solved in (("warm_start", 30), ("grpo", 70))]
    assert "from 0.300 to 0.700" in verdict(summary(*pair))


def test_the_verdict_without_a_comparison_says_so() -> None:
    assert verdict(summary()) == "No evaluation was recorded."
    assert "nothing to compare with: success 30.0% [21.9," in verdict(summary(played("grpo", 30)))


def test_the_verdict_uses_the_paired_change_where_there_is_one() -> None:
    after = played("grpo", 40)
    after["change"] = {"since": "warm_start", "tasks": 100, "success": 0.1, "success_ci95": [0.02, 0.18]}
    sentence = verdict(summary(played("warm_start", 30), after))
    assert "same 100 tasks, +2.0 to +18.0 points, leaves out 0" in sentence
    after["change"]["success_ci95"] = [-0.02, 0.2]
    assert "may be chance" in verdict(summary(played("warm_start", 30), after))


def test_the_environments_own_metrics_are_rows() -> None:
    evaluation = played("grpo", 2, n=4)
    evaluation["metrics"], evaluation["metrics_ci95"] = {"guesses": 4.0, "lone": 1.0}, {"guesses": [3.5, 4.5]}
    shown = text(summary(evaluation))
    assert "4.00 [3.50," in shown
    assert "lone" in shown


def test_a_narrow_terminal_breaks_cells_and_keeps_names() -> None:
    three = [played(label, solved) for label, solved in (("untrained", 1), ("warm_start", 30), ("grpo", 70))]
    shown = text(summary(*three), width=72)
    for part in ("success [95% interval]", "invalid actions", "70.0%", "78.1]"):
        assert part in shown
