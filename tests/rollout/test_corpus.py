"""The tiny model's tokenizer is built once per kind of game."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from envrl import compose
from envrl.errors import StageError
from envrl.model import tiny
from envrl.rollout.corpus import tiny_tokenizer


def built(cache: Path, *overrides: str) -> dict[str, int]:
    """The times at which the files of the cache were written, after asking for a tokenizer."""
    tokenizer = asyncio.run(tiny_tokenizer(compose(overrides), cache=cache))
    assert tokenizer.chat_template == tiny.CHAT_TEMPLATE
    return {str(path.relative_to(cache)): path.stat().st_mtime_ns for path in cache.rglob("*")}


def judge(record: dict[str, Any]) -> float:
    raise StageError("a judge was paid for a vocabulary")


def test_a_vocabulary_asks_no_reward_term(tmp_path: Path) -> None:
    assert built(tmp_path, f"reward.terms=[{__name__}:judge]")


def test_the_second_call_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = built(tmp_path)
    assert any(name.endswith("/tokenizer.json") for name in first)
    monkeypatch.setattr(tiny, "train_tokenizer", None)
    assert built(tmp_path) == first
    assert built(tmp_path, "seed=2", "grpo.steps=3", "name=other") == first


@pytest.mark.parametrize(
    "change", ["env.frozen_lake.args.size=5", "scheduler=gym", "model.tiny.vocab_size=400"]
)
def test_other_games_have_a_folder_of_their_own(tmp_path: Path, change: str) -> None:
    first = built(tmp_path)
    both = built(tmp_path, change)
    assert first.items() <= both.items()
    assert len(list(tmp_path.iterdir())) == 2
