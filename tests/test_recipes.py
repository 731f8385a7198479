"""Every recipe composes, and passes its preflight as far as a CPU can: with a tiny model and short games."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small import SMALL  # type: ignore[import-not-found]

from envrl import compose, run
from envrl.engine import Sampling
from envrl.env.policies import gold
from envrl.model.chat import Chat
from envrl.paths import RECIPES, options
from envrl.reward import TERMS
from envrl.rollout.policy import scripted
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Tasks
from envrl.stop import StopReason

TINY = ["model=tiny", "model.name_or_path=tiny", "stages=[check]", "check.require_signal=false"]
SHORT: dict[str, list[str]] = {
    "sudoku": ["env.sudoku.args.empties=3", "env.sudoku.max_turns=8"],
    "wordle": ["env.wordle.args.words=50"],
    "wordle_catch": ["env.wordle.args.words=50"],
    "wordle_tiny": ["env.wordle.args.words=50"],
}
"""What makes a recipe's games short."""

GPU = {"catch", "echo", "frozen_lake", "sudoku", "tools", "wordle", "wordle_catch"}


def tiny(recipe: str) -> Sequence[str]:
    room = ["model.tiny.max_position_embeddings=8192", "scheduler.max_tokens=4096"]
    return [f"recipe={recipe}", *SMALL, *TINY, *room, *SHORT.get(recipe, [])]


@pytest.mark.parametrize("recipe", options("recipe"))
@pytest.mark.usefixtures("elsewhere")
def test_every_recipe_passes_with_a_small_model(recipe: str) -> None:
    assert run(compose(tiny(recipe))).stages == ["check"]


@pytest.mark.parametrize("recipe", ["catch", "frozen_lake", "sudoku", "wordle", "wordle_catch"])
def test_a_game_fits_the_budget_in_qwens_tokens(recipe: str, qwen: Any) -> None:
    """Played by the solver, as the recipe's model would have to."""
    spec = compose([f"recipe={recipe}"])
    chat = Chat(qwen, template_kwargs=spec.model.chat_template_kwargs)
    groups = Tasks(spec.env, seed=1, stage="train", members=1).groups(0, 4)
    sampling = Sampling(max_tokens=spec.scheduler.max_tokens)
    played = asyncio.run(Runner(spec, chat).run(groups, scripted(gold), sampling, name=recipe))
    assert {episode.task.env for (episode,) in played} == set(spec.env)
    assert [(episode.stop, episode.success) for (episode,) in played] == [(StopReason.DONE, True)] * 4


def test_a_gpu_recipe_says_that_it_was_not_run_on_one() -> None:
    for recipe in options("recipe"):
        text = (RECIPES / f"{recipe}.yaml").read_text()
        assert ("Not run on a GPU." in text) == (recipe in GPU), recipe


def test_recipes_carry_what_the_guides_publish() -> None:
    wordle, sudoku, both = (compose([f"recipe={name}"]) for name in ("wordle", "sudoku", "wordle_catch"))
    assert wordle.model.name_or_path == "openenv/Qwen3-1.7B-Wordle-SFT"
    assert (wordle.grpo.num_generations, wordle.grpo.groups_per_step) == (4, 16)
    assert (wordle.evaluate.episodes, wordle.evaluate.temperature) == (30, 0)
    assert (sudoku.grpo.temperature, sudoku.grpo.top_k) == (0.8, 10)
    assert sudoku.scheduler_of("sudoku").max_turns == 100
    assert {term for env in (*sudoku.env.values(), *both.env.values()) for term in env.reward} <= TERMS.keys()
    assert (list(both.env), both.scheduler.tools_visible) == (["wordle", "catch"], "all")
    assert {env.weight for env in both.env.values()} == {1.0}


def test_the_questions_of_the_tools_recipe_are_answered_right() -> None:
    rows = [json.loads(line) for line in (RECIPES / "data/arithmetic.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == 200
    for row in rows:
        question = row["prompt"].removeprefix("What is ").partition("?")[0]
        assert eval(question, {"__builtins__": {}}) == row["answer"]


def test_shipped_data_is_found_from_anywhere(elsewhere: Path) -> None:
    assert compose(["recipe=tools"]).env["tools"].dataset == "recipes/data/arithmetic.jsonl"
    assert not (elsewhere / "recipes").exists()
