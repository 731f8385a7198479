"""What is written can be read, torn files are mended, and a resumed log equals an unbroken one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from envrl.errors import StageError
from envrl.tracking import Tracker, finite, iter_jsonl, read_jsonl, write_whole


def play(tracker: Tracker, steps: range) -> None:
    for step in steps:
        tracker.record([{"env": "a", "seed": step}], stage="train", step=step)
        tracker.log(step, {"reward": step / 10})


def test_a_line_per_step_is_on_disk_at_once(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "run")
    tracker.log(1, {"reward": 0.5})
    assert read_jsonl(tracker.metrics) == [{"step": 1, "reward": 0.5}]
    tracker.log(2, {"reward": 0.75})
    assert [line["step"] for line in read_jsonl(tracker.metrics)] == [1, 2]


def test_numbers_that_are_not_finite_become_null_and_keep_their_key(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    tracker.log(1, {"nan": math.nan, "inf": -math.inf, "numpy": np.float32(math.nan), "int": np.int64(3)})
    text = tracker.metrics.read_text()
    assert json.loads(text) == {"step": 1, "nan": None, "inf": None, "numpy": None, "int": 3}
    assert finite({"metrics": {"x": [math.inf, 1]}}) == {"metrics": {"x": [None, 1]}}


def test_episodes_carry_where_they_were_played(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    tracker.record([{"env": "a"}, {"env": "b"}], stage="evaluate", label="grpo")
    tracker.record([{"env": "a"}], stage="train", step=3)
    assert read_jsonl(tracker.episodes) == [
        {"stage": "evaluate", "label": "grpo", "env": "a"},
        {"stage": "evaluate", "label": "grpo", "env": "b"},
        {"stage": "train", "step": 3, "env": "a"},
    ]


@pytest.mark.parametrize("text", ["你好 \u2028 \x00 \r\n", "lone surrogate \udc80", '{"a": 1}\n{"b"'])
def test_any_text_of_a_model_survives_the_file(tmp_path: Path, text: str) -> None:
    tracker = Tracker(tmp_path)
    tracker.record([{"messages": [{"role": "assistant", "content": text}]}], stage="check")
    (record,) = read_jsonl(tracker.episodes)
    assert record["messages"][0]["content"] == text


def test_a_resumed_log_equals_an_unbroken_one(tmp_path: Path) -> None:
    unbroken, broken = Tracker(tmp_path / "a"), Tracker(tmp_path / "b")
    for tracker in (unbroken, broken):
        tracker.record([{"env": "a", "seed": 0}], stage="evaluate", label="warm_start")
    play(unbroken, range(1, 7))
    play(broken, range(1, 5))
    with broken.metrics.open("a") as file:
        file.write('{"step": 5, "rew')
    resumed = Tracker(tmp_path / "b")
    resumed.rewind(2)
    play(resumed, range(3, 7))
    assert resumed.metrics.read_bytes() == unbroken.metrics.read_bytes()
    assert resumed.episodes.read_bytes() == unbroken.episodes.read_bytes()


def test_rewinding_a_run_that_wrote_nothing_is_harmless(tmp_path: Path) -> None:
    Tracker(tmp_path).rewind(0)
    assert list(tmp_path.iterdir()) == []


def test_a_stage_that_is_played_again_replaces_its_episodes(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    tracker.record([{"n": 1}], stage="evaluate", label="warm_start")
    tracker.record([{"n": 2}], stage="evaluate", label="grpo")
    tracker.forget("evaluate", "grpo")
    assert [record["n"] for record in read_jsonl(tracker.episodes)] == [1]


def test_a_torn_last_line_is_left_out_and_never_joined_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "long": "' + "x" * 200_000)
    assert read_jsonl(path) == [{"step": 1}]
    Tracker(tmp_path).log(2, {})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


def test_a_log_that_is_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text('{"env"')
    assert Tracker(tmp_path).episodes.read_text() == ""


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(StageError, match=r"metrics\.jsonl, line 2: not JSON"):
        read_jsonl(path)


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    assert list(iter_jsonl(tmp_path / "none.jsonl")) == []


def test_a_whole_file_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in ("old", "new"):
        write_whole(tmp_path / "summary.json", text)
    assert (tmp_path / "summary.json").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 1
