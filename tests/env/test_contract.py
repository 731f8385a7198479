"""The contract that every environment of the registry passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import envrl.env
from envrl.env import REGISTRY, Environment, Face, environment_class, policies
from envrl.env.base import checked_arguments
from envrl.env.schema import tool_schemas

SEEDS = range(20)
CAP = 200


@pytest.fixture(params=REGISTRY)
def environment(request: pytest.FixtureRequest) -> Iterator[Environment]:
    made = envrl.env.make(request.param)
    yield made
    made.close()


def play(environment: Environment, policy: policies.Policy, seed: int) -> list[str | None]:
    """The observations of one episode, up to its end or the cap."""
    rng = Random(seed)
    seen = [environment.reset(seed=seed)]
    while not environment.done and len(seen) < CAP:
        call = policy(environment, rng)
        tool = environment.tools()[call.name]
        seen.append(tool(**checked_arguments(tool, call.arguments)))
        assert environment.reward is None or math.isfinite(environment.reward)
        assert all(map(math.isfinite, environment.metrics.values()))
    return seen


def test_the_same_seed_is_the_same_episode(environment: Environment) -> None:
    once = [play(environment, policies.random, seed) for seed in SEEDS]
    assert once == [play(environment, policies.random, seed) for seed in SEEDS]
    assert len({str(seen[0]) for seen in once}) > 1


def test_an_episode_leaves_no_trace_in_the_next(environment: Environment) -> None:
    first = environment.reset(seed=1)
    state = environment.reward, environment.done, environment.success, dict(environment.metrics)
    play(environment, policies.random, 2)
    assert environment.reset(seed=1) == first
    assert (environment.reward, environment.done, environment.success, dict(environment.metrics)) == state


def test_gold_wins(environment: Environment) -> None:
    for seed in SEEDS:
        play(environment, policies.gold, seed)
        assert environment.done
        assert environment.success


def test_gold_earns_more_than_random(environment: Environment) -> None:
    def mean(policy: policies.Policy) -> float:
        rewards = []
        for seed in SEEDS:
            play(environment, policy, seed)
            rewards.append(environment.reward or 0.0)
        return sum(rewards) / len(rewards)

    assert mean(policies.gold) > mean(policies.noisy(0.5)) > mean(policies.random)


def test_tools_have_schemas(environment: Environment) -> None:
    schemas = [schema["function"] for schema in tool_schemas(environment)]
    assert [schema["name"] for schema in schemas] == list(environment.tools())
    for schema in schemas:
        assert schema["description"]
        for argument in schema["parameters"]["properties"].values():
            assert argument["type"]
            assert argument["description"]


def test_both_faces_have_rules(environment: Environment) -> None:
    assert all(environment.instructions(face) for face in Face)


@pytest.mark.parametrize("policy", [policies.gold, policies.random])
def test_texts_stand_for_calls(environment: Environment, policy: policies.Policy) -> None:
    rng = Random(0)
    for seed in SEEDS:
        environment.reset(seed=seed)
        call = policy(environment, rng)
        assert environment.parse_action(environment.format_action(call)) == call


def test_a_text_without_an_action_is_answered(environment: Environment) -> None:
    environment.reset(seed=0)
    with pytest.raises(ValueError, match=r"\S"):
        environment.parse_action("")


def test_every_yaml_is_a_kind() -> None:
    files = {path.stem for path in (Path(__file__).parents[2] / "conf" / "env").glob("*.yaml")}
    assert files == {*REGISTRY, "custom"}


@pytest.mark.parametrize("kind", REGISTRY)
def test_the_registry_names_classes(kind: str) -> None:
    assert issubclass(environment_class(kind), Environment)
