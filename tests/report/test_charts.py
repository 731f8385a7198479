"""Which metrics become which curves."""

from __future__ import annotations

from envrl.report.charts import SUCCESS, Chart, figures, series
from envrl.summary import evaluation_of

LINES = [
    {"step": step, "success": step / 4, "env/a/success": step / 4, "env/b/success": 0.5, "time/update_s": 1.0}
    for step in (1, 2, 3)
]


def test_a_series_that_repeats_another_is_left_out() -> None:
    assert list(series(SUCCESS, LINES)) == ["success", "env/b/success"]


def test_null_is_a_gap_and_a_metric_that_never_was_is_no_curve() -> None:
    lines = [{"step": 1, "x": 1.0, "y": None}, {"step": 2, "x": None}]
    assert series(Chart("any", "unit", ("*",)), lines) == {"step": [1, 2], "x": [1.0, None]}


def test_charts_without_data_are_left_out() -> None:
    assert [title for title, _ in figures(LINES)] == ["Success, share of episodes", "Time of a step, seconds"]
    assert figures([]) == []


def test_evaluations_during_training_join_the_success_chart_with_their_interval() -> None:
    record = {
        "group": 0,
        "seed": 0,
        "success": True,
        "reward": 1.0,
        "stop": "done",
        "turns": [],
        "metrics": {},
    }
    during = [evaluation_of([record], "best", "a", step=step) for step in (2, 1)]
    (figure,) = [figure for title, figure in figures(LINES, during) if title.startswith("Success")]
    held_out = figure.data[-1]
    assert (held_out.name, list(held_out.x), list(held_out.y)) == ("held out: a", [1, 2], [1.0, 1.0])
    assert held_out.error_y.arrayminus[0] > 0
