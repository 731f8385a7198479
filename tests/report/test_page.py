"""report.html: whole or partial runs, one file, and nothing that a model wrote is markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from envrl.report.page import notes, render, times
from envrl.summary import Summary, evaluation_of
from envrl.tracking import Tracker

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def episode(seed: int, success: bool, *, text: str = "move up", **changes: Any) -> dict[str, Any]:
    return {
        "env": "lake", "seed": seed, "group": seed, "member": 0, "stop": "done", "error": None,
        "reward": float(success), "success": success, "turns": [{"failures": 0}], "metrics": {},
        "messages": [{"role": "user", "content": f"start {seed}"}, {"role": "assistant", "content": text}],
        **changes,
    }  # fmt: skip


def full_run(directory: Path, text: str = "move up") -> Path:
    tracker, summary = (
        Tracker(directory),
        Summary("d1gest", stages=["evaluate", "train", "evaluate"], status="ok"),
    )
    for label, solved in (("warm_start", 2), ("grpo", 6)):
        episodes = [episode(seed, seed < solved, text=f"{label} {text}") for seed in range(8)]
        tracker.record(episodes, stage="evaluate", label=label)
        summary.add(evaluation_of(episodes, label, "lake"))
    for step in (1, 2):
        tracker.log(
            step, {"reward": step, f"env/{text}/reward": 7.0, "time/step_s": 60, "time/rollout_s": 40}
        )
    summary.write(directory)
    return directory


class Tags(HTMLParser):
    """Collects the tags and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_whole_run_is_one_page_with_everything(tmp_path: Path) -> None:
    html = render(full_run(tmp_path)).read_text()
    sections = ("Held-out tasks", "Reward, per episode", "Where the time went", "A sample of episodes")
    for part in ("Success rose by 50.0 points", *sections, "warm_start move up", "d1gest"):
        assert part in html


def test_the_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    html = render(full_run(tmp_path)).read_text()
    tags = Tags(html).found
    assert not [
        tag for tag, attributes in tags if tag == "link" or "src" in attributes or "href" in attributes
    ]
    assert "default-src 'none'" in html
    assert html.count("plotly.js v") == 1, "the library is there once"


def test_what_a_model_wrote_is_text(tmp_path: Path) -> None:
    full_run(tmp_path, text=EVIL)
    plain = Tags(render(full_run(tmp_path / "plain")).read_text()).found
    evil = Tags(render(tmp_path).read_text()).found
    assert [tag for tag, _ in evil if tag == "img"] == []
    scripts = [sum(tag == "script" for tag, _ in tags) for tags in (plain, evil)]
    assert scripts[0] == scripts[1]


def test_an_empty_directory_has_a_page_that_says_so(tmp_path: Path) -> None:
    html = render(tmp_path).read_text()
    assert "No evaluation was recorded." in html
    assert "No stage is finished yet." in html
    assert "plotly" not in html


def test_a_failed_run_says_why_and_shows_what_there_is(tmp_path: Path) -> None:
    Summary("d", status="failed", error="StageError: <b>out of memory").write(tmp_path)
    tracker = Tracker(tmp_path)
    tracker.record([episode(1, False, text="only this")], stage="train", step=4)
    tracker.record([episode(2, False, stop="error", error="reset hung", reward=None)], stage="train", step=4)
    (tmp_path / "metrics.jsonl").write_text('{"step": 4, "grad_norm": null}\n{"step": 5, "gr')
    (tmp_path / "run.log").write_text("2026 INFO fine\n2026 WARNING <i>weak signal\n")
    html = render(tmp_path).read_text()
    for part in ("The run failed.", "&lt;b&gt;out of memory", "only this", "train step 4", "reset hung (1)"):
        assert part in html
    assert "&lt;i&gt;weak signal" in html
    assert "2026 INFO" not in html
    assert "not finite at step 4" in html


def test_the_sample_shows_newly_solved_tasks_before_and_after(tmp_path: Path) -> None:
    html = render(full_run(tmp_path)).read_text()
    shown = re.findall(r"lake, seed (\d+), (warm start|\+ GRPO):", html)
    assert shown[:4] == [("2", "warm start"), ("2", "+ GRPO"), ("3", "warm start"), ("3", "+ GRPO")]
    assert {seed for seed, _ in shown} == {"0", "1", "2", "3", "6", "7"}


def test_a_very_long_message_is_cut_and_says_so(tmp_path: Path) -> None:
    Tracker(tmp_path).record([episode(1, True, text="x" * 5000)], stage="train", step=1)
    assert "1000 more characters" in render(tmp_path).read_text()


def test_messages_need_not_be_plain_text(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "parts"}]},
    ]
    Tracker(tmp_path).record([episode(1, True, messages=messages)], stage="train", step=1)
    assert "parts" in render(tmp_path).read_text()


def test_rendering_again_replaces_the_page(tmp_path: Path) -> None:
    assert render(full_run(tmp_path)).read_bytes() == render(tmp_path).read_bytes()


def test_times_name_stages_and_the_parts_of_a_step() -> None:
    lines = [{"time/step_s": 10.0, "time/rollout_s": 6.0, "time/update_s": 3.0}] * 2
    assert times(Summary("d", stage_s={"train": 24.0}), lines) == [
        ("train", "0:24", 1.0),
        ("steps: rollout", "0:12", 0.5),
        ("steps: update", "0:06", 0.25),
        ("steps: the rest", "0:02", pytest.approx(1 / 12)),
    ]


def test_notes_point_at_what_is_odd() -> None:
    odd = {"step": 3, "frac_zero_std": 0.9, "kl_engine": 0.5, "episodes/errors": 2, "grad_norm": None}
    assert len(notes([odd])) == 4
    assert notes([{"step": 1, "frac_zero_std": 0.1, "kl_engine": 1e-6, "grad_norm": 1.0}]) == []
