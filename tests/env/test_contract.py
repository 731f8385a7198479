"""The contract that every environment of the registry passes; the games are those with a solver."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import envrl.env
from envrl.env import REGISTRY, Environment, Face, ToolCall, environment_class, policies
from envrl.env.base import checked_arguments, has_solver
from envrl.env.schema import tool_schemas

SEEDS = range(20)
CAP = 200
ARGS: dict[str, dict[str, Any]] = {"tools": {"functions": ["envrl.env.arithmetic:add"]}}
"""Of the kinds that cannot be built without."""
GAMES = [kind for kind in REGISTRY if has_solver(environment_class(kind))]


@pytest.fixture(params=REGISTRY)
def environment(request: pytest.FixtureRequest) -> Iterator[Environment]:
    made = envrl.env.make(request.param, **ARGS.get(request.param, {}))
    yield made
    made.close()


@pytest.fixture(params=GAMES)
def game(request: pytest.FixtureRequest) -> Iterator[Environment]:
    made = envrl.env.make(request.param, **ARGS.get(request.param, {}))
    yield made
    made.close()


def play(game: Environment, policy: policies.Policy, seed: int) -> list[str | None]:
    """The observations of one episode, up to its end or the cap."""
    rng = Random(seed)
    seen = [game.reset(seed=seed)]
    while not game.done and len(seen) < CAP:
        seen.append(answer(game, policy(game, rng)))
        assert game.reward is None or math.isfinite(game.reward)
        assert all(map(math.isfinite, game.metrics.values()))
    return seen


def answer(game: Environment, call: ToolCall) -> str | None:
    """What a call gives to see; a refused one its reason."""
    tool = game.tools()[call.name]
    arguments = checked_arguments(tool, call.arguments)
    try:
        seen: str | None = tool(**arguments)
    except ValueError as refusal:
        return f"Error: {refusal}"
    return seen


def test_the_same_seed_is_the_same_episode(game: Environment) -> None:
    once = [play(game, policies.random, seed) for seed in SEEDS]
    assert once == [play(game, policies.random, seed) for seed in SEEDS]
    assert len({str(seen) for seen in once}) > 1


def test_an_episode_leaves_no_trace_in_the_next(game: Environment) -> None:
    first = game.reset(seed=1)
    state = game.reward, game.done, game.success, dict(game.metrics)
    play(game, policies.random, 2)
    assert game.reset(seed=1) == first
    assert (game.reward, game.done, game.success, dict(game.metrics)) == state


def test_gold_wins(game: Environment) -> None:
    game.reset(seed=0)
    if game.success is None:
        pytest.skip("there is nothing to win")
    for seed in SEEDS:
        play(game, policies.gold, seed)
        assert game.done
        assert game.success


def test_gold_is_never_refused(game: Environment) -> None:
    for seed in SEEDS:
        assert not any(str(seen).startswith("Error") for seen in play(game, policies.gold, seed))


def test_gold_earns_more_than_random(game: Environment) -> None:
    def mean(policy: policies.Policy) -> float:
        rewards = []
        for seed in SEEDS:
            play(game, policy, seed)
            rewards.append(game.reward or 0.0)
        return sum(rewards) / len(rewards)

    assert mean(policies.gold) > mean(policies.noisy(0.5)) > mean(policies.random)


def test_tools_have_schemas(environment: Environment) -> None:
    schemas = [schema["function"] for schema in tool_schemas(environment)]
    assert [schema["name"] for schema in schemas] == list(environment.tools())
    assert schemas
    for schema in schemas:
        assert schema["description"]
        for argument in schema["parameters"]["properties"].values():
            assert argument["type"]
            assert argument["description"]


def test_both_faces_have_rules(environment: Environment) -> None:
    assert all(environment.instructions(face) for face in Face)


@pytest.mark.parametrize("policy", [policies.gold, policies.random])
def test_texts_stand_for_calls(game: Environment, policy: policies.Policy) -> None:
    rng = Random(0)
    for seed in SEEDS:
        game.reset(seed=seed)
        call = policy(game, rng)
        assert game.parse_action(game.format_action(call)) == call


def test_a_text_without_an_action_is_answered(game: Environment) -> None:
    game.reset(seed=0)
    with pytest.raises(ValueError, match=r"\S"):
        game.parse_action("")


def test_tasks_are_rows_for_reset(environment: Environment) -> None:
    for held_out in (False, True):
        for row in environment.tasks(held_out=held_out) or []:
            environment.reset(seed=0, **row)


def test_only_the_end_ends(game: Environment) -> None:
    """A call after the end is refused and changes nothing."""
    play(game, policies.gold, 0)
    if not game.done:
        pytest.skip("only the model ends an episode")
    state = game.reward, game.success, dict(game.metrics)
    assert str(answer(game, game.random_action(Random(0)))).startswith("Error")
    assert (game.reward, game.success, dict(game.metrics)) == state


def test_every_yaml_is_a_kind() -> None:
    files = {path.stem for path in (Path(__file__).parents[2] / "conf" / "env").glob("*.yaml")}
    assert files == {*REGISTRY, "custom"}


@pytest.mark.parametrize("kind", REGISTRY)
def test_the_registry_names_classes(kind: str) -> None:
    assert issubclass(environment_class(kind), Environment)
