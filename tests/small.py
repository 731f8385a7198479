"""A run of seconds that has something to learn: two-by-two lakes and a model of 20,000 weights."""

from __future__ import annotations

SMALL = [
    "model.tiny.hidden_size=32",
    "model.tiny.intermediate_size=64",
    "model.tiny.num_hidden_layers=1",
    "grpo.steps=4",
    "grpo.groups_per_step=2",
    "grpo.num_generations=4",
    "evaluate.episodes=8",
    "check.groups=2",
    "checkpoint.every=2",
]
WARM = [
    "model.warm_start.steps=60",
    "model.warm_start.batch_size=8",
    "model.warm_start.learning_rate=1e-2",
    "model.warm_start.warmup_steps=5",
    "model.warm_start.noise=0.5",
]


def lake(*overrides: str) -> list[str]:
    """The small run on FrozenLake."""
    return [*SMALL, *WARM, "env.frozen_lake.args.size=2", *overrides]


def game(name: str, *overrides: str) -> list[str]:
    """The small run on a game of games.py, without a warm start."""
    return [*SMALL, "model.warm_start=null", "env=custom", f"env.custom.target=games:{name}", *overrides]
