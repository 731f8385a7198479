"""Which games the warm start learns from, and which of their tokens."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from small import lake  # type: ignore[import-not-found]

from envrl import compose
from envrl.env.frozen_lake import FrozenLake
from envrl.errors import StageError
from envrl.model import format_tool_call, parse_tool_calls
from envrl.rollout.transcript import TokenRow
from envrl.spec import WarmStartSpec
from envrl.stage import warm_start
from envrl.stage.base import Agent, Run
from envrl.summary import Summary

pytestmark = pytest.mark.usefixtures("elsewhere")


def run_of(*overrides: str) -> tuple[Run, WarmStartSpec]:
    spec = compose(lake(*overrides))
    assert spec.model.warm_start is not None
    return Run(spec, Summary(spec.digest)), spec.model.warm_start


async def games(run: Run, spec: WarmStartSpec, count: int) -> tuple[Agent, list[TokenRow]]:
    """The first rows that the warm start would learn from."""
    endless = warm_start.solver_games(run, spec)
    return await run.agent(), [await anext(endless) for _ in range(count)]


def replayed(text: str) -> FrozenLake:
    """The lake after a conversation's moves, on the board that its prompt shows."""
    size, board = re.search(r"FrozenLake (\d+)x\d+:\n((?:[^\n]+\n)+)", text).groups()  # type: ignore[union-attr]
    lake = FrozenLake(size=int(size))
    lake.reset(grid=[row.replace(" ", "").replace("P", "S") for row in board.splitlines()])
    for turn in text.split("<|assistant|>")[1:]:
        for call in parse_tool_calls(turn):
            lake.move(**call.arguments)  # type: ignore[arg-type]
    return lake


def lessons(row: TokenRow) -> list[tuple[int, int]]:
    """Where the stretches of learned tokens start and end."""
    edges = [b - a for a, b in pairwise([0, *row.mask_T, 0])]
    starts, ends = ([i for i, edge in enumerate(edges) if edge == sign] for sign in (1, -1))
    return list(zip(starts, ends, strict=True))


@pytest.mark.parametrize("noise", [0.0, 0.8])
def test_what_is_learned_is_what_the_solver_would_say(noise: float) -> None:
    run, spec = run_of("env.frozen_lake.args.size=3", f"model.warm_start.noise={noise}")
    agent, rows = asyncio.run(games(run, spec, 12))
    turns = learned = 0
    for row in rows:
        turns += agent.tokenizer.decode(row.ids_T).count("<tool_call>")
        for start, end in lessons(row):
            known = replayed(agent.tokenizer.decode(row.ids_T[:start]))
            said = agent.chat.decode(row.ids_T[start:end])
            assert said == format_tool_call(known.gold_action())
            learned += 1
    assert learned > len(rows)
    assert (learned < turns) is (noise > 0)


def test_the_loss_is_that_of_transformers_on_these_tokens() -> None:
    run, spec = run_of()
    agent, rows = asyncio.run(games(run, spec, 6))
    model: Any = agent.model
    tokens = sum(sum(row.mask_T) for row in rows)
    expected = torch.zeros(())
    for row in rows:
        labels = [i if m else -100 for i, m in zip(row.ids_T, row.mask_T, strict=True)]
        expected = expected + model(torch.tensor([row.ids_T]), labels=torch.tensor([labels])).loss * (
            sum(row.mask_T) / tokens
        )
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    assert warm_start._accumulate(run, agent, rows) == pytest.approx(expected.item(), rel=1e-5)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("required", ["true", "false"])
def test_only_solved_games_are_learned_where_success_is_required(required: str) -> None:
    noisy = ["env.frozen_lake.args.size=4", "env.frozen_lake.args.p=0.6", "model.warm_start.noise=0.6"]
    run, spec = run_of(*noisy, f"model.warm_start.require_success={required}")
    agent, rows = asyncio.run(games(run, spec, 24))
    solved = [replayed(str(agent.tokenizer.decode(row.ids_T))).success for row in rows]
    assert all(solved) is (required == "true")
    assert any(solved)


def judge(record: dict[str, Any]) -> float:
    raise StageError("a judge was paid for solver games")


def test_no_reward_term_is_asked() -> None:
    run, spec = run_of(f"reward.terms=[{__name__}:judge]")
    assert len(asyncio.run(games(run, spec, 1))[1]) == 1


def test_a_solver_that_never_succeeds_is_given_up() -> None:
    Path("far.jsonl").write_text('{"grid": ["SFF", "FFF", "FFG"]}\n')
    run, spec = run_of(
        "stages=[warm_start]",
        "env.frozen_lake.dataset=far.jsonl",
        "scheduler.max_turns=1",
        "model.warm_start.require_success=true",
    )
    with pytest.raises(StageError, match=r"none of \d+ solver games was solved.*require_success=false"):
        asyncio.run(games(run, spec, 1))
