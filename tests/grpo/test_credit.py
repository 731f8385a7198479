"""Rewards of episodes, whole or by turn, become advantages of tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
from games import call  # type: ignore[import-not-found]
from played import UNLIMITED, played  # type: ignore[import-not-found]

from envrl import compose
from envrl.grpo.advantages import deviation, turn_advantages
from envrl.grpo.credit import credit, is_flat_group, overlong_penalty, penalties, token_rows, turn_rewards
from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer
from envrl.rollout.trajectory import Episode
from envrl.spec import RunSpec

GAME = ["env=custom", "env.custom.target=games:Moody"]
TURN = "grpo.credit=turn"


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(bootstrap_tokenizer(), template_kwargs={})


def spec_of(*overrides: str) -> RunSpec:
    return compose([*UNLIMITED, *GAME, *overrides])


def group(chat: Chat, *words_GK: list[str]) -> list[Episode]:
    """One member for each list of guesses; "crash" breaks it, "raise" pays a quarter, "crane" wins one."""
    return [episode for words in words_GK for episode in played(chat, [call(word) for word in words], *GAME)]


def by_gather(rewards: list[float]) -> list[float]:
    return rewards


def by_turn(episode: Episode, advantages_T: list[float]) -> list[set[float]]:
    """The advantages that stand on each turn's tokens."""
    return [set(advantages_T[turn.start : turn.start + turn.tokens]) for turn in episode.turns]


def test_scalars_lists_and_missing_rewards_in_one_batch() -> None:
    """A reward of None is none in this turn, and 0 is one (SkyRL#299)."""
    paid = [
        turn_rewards(rewards_K, whole=1.0, weight=1.0)
        for rewards_K in ([None, None, 1.0], [0.0, 0.0, 1.0], [1.0])
    ]
    assert paid == [[None, None, 1.0], [0.0, 0.0, 1.0], [1.0]]
    assert [sum(reward or 0.0 for reward in rewards_K) for rewards_K in paid] == [1.0, 1.0, 1.0]
    advantages_GK = turn_advantages(paid)
    assert [len(turns_K) for turns_K in advantages_GK] == [3, 3, 1]
    assert all(math.isfinite(advantage) for turns_K in advantages_GK for advantage in turns_K)


@pytest.mark.parametrize("word", ["nan", "inf"])
def test_a_turns_reward_that_is_no_number_is_named(chat: Chat, word: str) -> None:
    (episode,) = group(chat, [word, "crane"])
    assert episode.reward is None
    assert f"reward is {word}" in str(episode.error)


def test_process_supervision_as_published() -> None:
    """Each reward minus the mean of all, over their std; a turn has its own and all later ones."""
    rewards_GK = [[0.0, 1.0], [0.5]]
    std = deviation([0.0, 1.0, 0.5]) + 1e-4
    first, second = turn_advantages(rewards_GK)
    assert first == pytest.approx([(-0.5 + 0.5) / std, 0.5 / std])
    assert second == pytest.approx([0.0])
    assert turn_advantages([[1.0, 1.0], [1.0]]) == [[0.0, 0.0], [0.0]]


def test_other_terms_and_the_penalty_are_the_last_turns() -> None:
    assert turn_rewards([0.25, None, 0.5], whole=3.0, weight=2.0) == [0.5, None, 2.5]
    assert turn_rewards([0.25, None], whole=0.0, weight=1.0) == [0.25, -0.25]
    assert turn_rewards([], whole=1.0, weight=1.0) == []


def test_every_turns_tokens_get_its_advantage(chat: Chat) -> None:
    members = group(chat, ["raise", "zebra", "crane"], ["zebra", "crane"], ["crash"])
    (advantages,) = credit([members], spec_of(TURN), gather=by_gather)
    rows = token_rows([members], [advantages])
    assert len(rows) == 2  # the broken one is trained on by nobody
    for episode, advantage, row in zip(members, advantages, rows, strict=False):
        assert isinstance(advantage, list)
        assert by_turn(episode, row.advantages_T) == [{a} for a in advantage]
        assert all(a == 0 for a, m in zip(row.advantages_T, row.mask_T, strict=True) if not m)
    rewards = [0.25, 0.0, 0.75, 0.0, 1.0]  # of all turns; "crane" sets the total to one
    mean, std = sum(rewards) / 5, deviation(rewards) + 1e-4
    assert advantages[0] == pytest.approx([(r - n * mean) / std for r, n in ((1.0, 3), (0.75, 2), (0.75, 1))])


def test_an_episode_of_one_turn_has_the_same_advantage_either_way(chat: Chat) -> None:
    members = group(chat, ["crane"], ["crash"], ["crane"])
    members[0].reward = 0.5
    (whole,), (turns,) = (credit([members], spec_of(*o), gather=by_gather) for o in ([], [TURN]))
    assert turns == [[a] for a in whole]
    assert not is_flat_group(whole)


def test_the_batchs_deviation_is_that_of_all_ranks(chat: Chat) -> None:
    """TRL's scale_rewards=batch: the group's own mean, and one std for all."""
    groups = [group(chat, ["crane"], ["crane"]) for _ in range(2)]
    rewards = iter([0.0, 1.0, 5.0, 2.0])
    for episode in [*groups[0], *groups[1]]:
        episode.reward = next(rewards)
    other_rank = [7.0, None]

    def gather(own: list[float]) -> list[float]:
        return [*own, *(reward for reward in other_rank if reward is not None)]

    advantages = credit(groups, spec_of("grpo.scale_rewards=batch"), gather=gather)
    std = deviation([0.0, 1.0, 5.0, 2.0, 7.0]) + 1e-4
    assert advantages == [pytest.approx([-0.5 / std, 0.5 / std]), pytest.approx([1.5 / std, -1.5 / std])]


def test_rows_know_that_their_group_is_flat(chat: Chat) -> None:
    flat, alive = group(chat, ["crane"], ["crane"]), group(chat, ["crane"], ["crane"])
    alive[0].reward = 0.0
    advantages = credit([flat, alive], spec_of(), gather=by_gather)
    assert [is_flat_group(group) for group in advantages] == [True, False]
    assert [row.flat for row in token_rows([flat, alive], advantages)] == [True, True, False, False]


def test_soft_overlong_punishment_as_published() -> None:
    """DAPO's: nothing up to 16384 tokens, then a line to -1 at 20480."""
    lengths = {0: 0.0, 16384: 0.0, 18432: -0.5, 20480: -1.0, 30000: -1.0}
    for tokens, penalty in lengths.items():
        assert overlong_penalty(tokens, max_tokens=20480, buffer=0.2) == pytest.approx(penalty)
        assert overlong_penalty(tokens, max_tokens=20480, buffer=0.0) == 0


@pytest.mark.parametrize("how", [[], [TURN]])
def test_the_penalty_lowers_what_is_learned_from_and_not_the_record(chat: Chat, how: list[str]) -> None:
    """Observations count, as they do for scheduler.max_tokens."""
    short, long = group(chat, ["crane"], ["zebra", "crane"])
    assert long.length > short.length
    limit = [f"scheduler.max_tokens={long.length}", f"grpo.overlong_buffer={1 - short.length / long.length}"]
    spec = spec_of(*limit, *how)
    ((good, bad),) = credit([[short, long]], spec, gather=by_gather)
    assert penalties([[short, long]], spec) == pytest.approx([0.0, -1.0])
    assert (short.reward, long.reward) == (1.0, 1.0)
    last: Any = [a[-1] if isinstance(a, list) else a for a in (good, bad)]
    assert last[0] > 0 > last[1]
