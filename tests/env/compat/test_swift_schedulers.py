"""ms-swift's schedulers, as plugins bring them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from lake_classes import FrozenLakeEnv  # type: ignore[import-not-found]
from sudoku_classes import Server  # type: ignore[import-not-found]
from swift_classes import Diary, Hinter  # type: ignore[import-not-found]

from envrl import compose
from envrl.errors import ConfigError
from envrl.stop import StopReason

DIARY = ["scheduler.target=gym_scheduler", "env.custom.target=swift_classes:Diary"]
SUDOKU = ["scheduler.target=guides_sudoku", "env.custom.target=none"]
QUESTION = {"prompt": "What is it?", "solution": "42"}
MINE = ["reward.terms=[env,length]", "env.custom.target=none"]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Whatever happens, all that was opened is closed, once."""
    Diary.written.clear()
    Hinter.calls.clear()
    yield
    assert all(diary.closed == 1 for diary in Diary.written)
    assert (FrozenLakeEnv.live, Server.live) == (0, 0)


def scheduler(name: str) -> str:
    return f"scheduler.target=swift_classes:{name}"


def texts(episode: Any) -> list[str]:
    return [message["content"] for message in episode.messages]


def trained(episode: Any, transcript: int = 0) -> list[int]:
    t = episode.transcripts[transcript]
    return [i for i, m in zip(t.ids, t.mask, strict=True) if m]


# --- playing environments -----------------------------------------------------------------------


@pytest.mark.parametrize("replies", [["right"] * 9, ["<action>down</action>", "no idea"] * 5])
def test_gym_scheduler_plays_as_ours_does(play: Any, classes: Any, replies: list[str]) -> None:
    lake = ["env.custom.target=guides_lake", "scheduler.max_turns=6", classes("lake_classes")]
    theirs = play(replies, "scheduler.target=gym_scheduler", *lake, groups=6)
    ours = play(replies, "scheduler=gym", *lake, groups=6)
    for one, other in zip(theirs, ours, strict=True):
        assert vars(one.transcripts[0]) == vars(other.transcripts[0])
        assert (one.reward, one.stop) == (other.reward, other.stop)
        assert [turn.reward for turn in one.turns] == [turn.reward for turn in other.turns]
        assert one.metrics == other.metrics


def test_what_an_environment_says_replaces_the_rows_messages(play: Any, dataset: Any) -> None:
    row = {"prompt": "placeholder", "env_config": {"system": "Write.", "page": None}}
    (episode,) = play(["one", "stop"], *DIARY, dataset(row))
    assert texts(episode) == ["Write.", "Dear diary", "one", "page 1", "stop"]
    (diary,) = Diary.written
    assert diary.env_config == row["env_config"]
    assert diary.request.uuid


def test_infos_are_kept(play: Any) -> None:
    (episode,) = play(["one", "stop"], *DIARY)
    infos = json.loads(json.dumps(episode.record()))["extra"]["rollout_infos"]
    assert (infos["total_reward"], infos["step_rewards"], infos["gym_done"]) == (1.0, [0.5, 0.5], True)
    assert [info.get("page") for info in infos["infos"]] == [None, 1, 2]
    assert episode.metrics == {"page": 2.0}


def test_a_turn_cut_short_does_not_end_a_game(play: Any) -> None:
    (episode,) = play(["onward", "stop"], *DIARY, "scheduler.max_turn_tokens=3", "scheduler.max_turns=2")
    assert (len(episode.turns), episode.stop) == (2, StopReason.MAX_TURNS)


def test_the_guides_sudoku(play: Any, classes: Any) -> None:
    replies = ["[1 3 3]", "[1 3 3]", "[3 2 1]", "[4 4 1]"]
    weights = ["reward.terms=[format,env]", "reward.weights=[0.2,1.0]"]
    (episode,) = play(replies, *SUDOKU, *weights, classes("sudoku_classes"))
    total = (1 - 1 + 1 + 1) / 4 + (1 + 0 + 1 + 1) / 4 - 2 / 4 + 1 + 1
    assert episode.stop is StopReason.DONE
    assert list(episode.rewards) == ["format", "env"]
    assert episode.reward == pytest.approx(0.2 * 1 + total)
    assert episode.metrics["progress_reward"] == 1.0
    assert texts(episode)[:4] == ["Fill the grid; answer [row col number].", "432.", "[1 3 3]", "432."]


def test_a_sudoku_without_a_move_in_it(play: Any, classes: Any) -> None:
    (episode,) = play(["I pass."], *SUDOKU, classes("sudoku_classes"))
    assert (episode.stop, episode.reward) == (StopReason.DONE, -1.0)


def test_a_server_that_blocks_holds_up_nobody_else(play: Any, classes: Any, dataset: Any) -> None:
    rows = dataset({"env_config": {"delay_s": 0.2}})
    episodes = play(["[1 3 3]", "pass"], *SUDOKU, classes("sudoku_classes"), rows, members=8)
    steps = sum(episode.turns[0].step_s for episode in episodes)
    whole = max(episode.record()["duration_s"] for episode in episodes)
    assert steps > 8 * 0.2
    assert whole < steps / 2


# --- hooks ----------------------------------------------------------------------------------------


def test_hooks_are_called_in_their_order(play: Any, dataset: Any) -> None:
    (episode,) = play(["41", "42"], scheduler("Hinter"), *MINE, dataset(QUESTION))
    assert Hinter.calls == [
        "start ['What is it?']",
        *["end 1 41", "check stop", "step 1"],
        *["end 2 42", "check stop"],
    ]
    assert texts(episode) == ["What is it?", "41", "Try again.", "42"]
    assert episode.stop is StopReason.DONE
    assert episode.metrics == {"hints": 1.0}
    assert episode.extra["rollout_infos"] == {"hints": 1, "last": "Try again.", "num_turns": 2}
    assert episode.rewards["env"] is None


def test_limits_end_what_a_plugin_would_not(play: Any, dataset: Any) -> None:
    (cut,) = play(["forty"], scheduler("Hinter"), *MINE, dataset(QUESTION), "scheduler.max_turn_tokens=2")
    assert cut.stop is StopReason.LENGTH
    (long,) = play(["41"] * 3, scheduler("Hinter"), *MINE, dataset(QUESTION), "scheduler.max_turns=3")
    assert (long.stop, len(long.turns)) == (StopReason.MAX_TURNS, 3)
    room = "scheduler.max_tokens=40"
    (full,) = play(["41"] * 9, scheduler("Hinter"), *MINE, dataset(QUESTION), room)
    assert full.stop is StopReason.LENGTH
    assert len(full.transcripts[0].ids) - full.transcripts[0].prompt_tokens <= 40
    for limit, stop in (("max_turns=3", StopReason.MAX_TURNS), ("max_tokens=80", StopReason.LENGTH)):
        (endless,) = play(["a"] * 99, scheduler("Endless"), *MINE, dataset(QUESTION), f"scheduler.{limit}")
        assert endless.stop is stop


def test_a_rewritten_history_is_another_transcript(play: Any, chat: Any, dataset: Any) -> None:
    (episode,) = play(["40", "41", "42"], scheduler("Forgetful"), *MINE, dataset(QUESTION))
    assert len(episode.transcripts) == 3
    assert [trained(episode, n) for n in range(3)] == [
        [*chat.encode(text), chat.turn_end] for text in ("40", "41", "42")
    ]
    assert texts(episode) == ["What is it?", "You said 41.", "42"]
    assert len(episode.rows(1.0)) == 3


def test_a_tip_within_the_models_message_is_not_trained(play: Any, chat: Any, dataset: Any) -> None:
    (episode,) = play(["41.", " It is 42.", "42"], scheduler("Tipper"), *MINE, dataset(QUESTION))
    assert texts(episode) == ["What is it?", "41. But wait, It is 42. But wait,42"]
    (transcript,) = episode.transcripts
    assert trained(episode) == chat.encode("41.") + chat.encode(" It is 42.") + [
        *chat.encode("42"),
        chat.turn_end,
    ]
    spoken = transcript.ids[transcript.prompt_tokens :]
    assert chat.decode(spoken) == "41. But wait, It is 42. But wait,42"
    assert [lp for lp, m in zip(transcript.logprobs, transcript.mask, strict=True) if not m] == [0.0] * (
        len(transcript.ids) - sum(transcript.mask)
    )


def test_a_turn_that_is_cut_keeps_what_is_kept(play: Any, chat: Any, dataset: Any) -> None:
    (episode,) = play(["abcdef", "42"], scheduler("Cutter"), *MINE, dataset(QUESTION))
    first, second = episode.transcripts
    assert trained(episode, 0) == chat.encode("abcdef")[:2]
    assert [lp for lp, m in zip(first.logprobs, first.mask, strict=True) if m] == [-1.0, -2.0]
    assert chat.decode(second.ids[-len(chat.encode("ab But wait,42")) - 1 :]) == "ab But wait,42"
    assert trained(episode, 1) == [*chat.encode("42"), chat.turn_end]


def test_a_loss_mask_says_which_turns_are_trained(play: Any, chat: Any, dataset: Any) -> None:
    (episode,) = play(["a", "b", "c", "42"], scheduler("Muted"), *MINE, dataset(QUESTION))
    assert trained(episode) == [
        token for text in ("a", "c", "42") for token in [*chat.encode(text), chat.turn_end]
    ]


def test_what_was_not_sampled_is_never_trained(play: Any, dataset: Any) -> None:
    (episode,) = play(["41", "42"], scheduler("Forger"), *MINE, dataset(QUESTION))
    assert episode.stop is StopReason.ERROR
    assert "response_loss_mask trains 2 tokens behind turn 1 that the model did not sample" in episode.error


# --- a run of its own -------------------------------------------------------------------------------


def test_an_overridden_run(play: Any, chat: Any, dataset: Any) -> None:
    (episode,) = play(["one", "two"], scheduler("OwnRun"), *MINE, dataset(QUESTION))
    assert [trained(episode, n) for n in range(2)] == [
        [*chat.encode(text), chat.turn_end] for text in ("one", "two")
    ]
    assert (episode.stop, episode.env_reward) == (StopReason.DONE, 2.0)


def test_a_run_around_the_default_one(play: Any) -> None:
    (episode,) = play(["one", "stop"], scheduler("Wrapped"), DIARY[1])
    assert (episode.stop, episode.reward) == (StopReason.DONE, 10.0)
    assert [turn.reward for turn in episode.turns] == [0.5, 9.5]


# --- what goes wrong ----------------------------------------------------------------------------------


def test_one_that_breaks_leaves_its_siblings_alone(play: Any) -> None:
    first, other = play(lambda episode, turn: "crash" if episode[-3] == "0" else "stop", *DIARY, members=2)
    assert first.stop is StopReason.ERROR
    assert "no ink left" in first.error
    assert (other.stop, other.reward) == (StopReason.DONE, 0.5)


def test_hooks_have_the_deadline_of_a_step(play: Any) -> None:
    (episode,) = play(["one"], scheduler("Stuck"), DIARY[1], "scheduler.step_timeout_s=0.05")
    assert episode.stop is StopReason.ERROR
    assert "on_turn_end took longer than 0.05 s" in episode.error


@pytest.mark.parametrize(
    ("limit", "stop"),
    [
        ("scheduler.max_turns=2", StopReason.MAX_TURNS),
        ("scheduler.episode_timeout_s=0.05", StopReason.DEADLINE),
    ],
)
def test_environments_are_closed_whatever_ends_them(play: Any, limit: str, stop: StopReason) -> None:
    words = ["sleep"] if "timeout" in limit else ["one", "two", "three"]
    (episode,) = play(words, *DIARY, limit)
    assert episode.stop is stop


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["scheduler.target=hintr"], "scheduler.target: scheduler: unknown 'hintr'; did you mean hinter"),
        ([scheduler("Unfinished")], "scheduler.target: Unfinished has neither step nor a run of its own"),
        ([scheduler("Diary")], "is no finished envrl.scheduler.Scheduler"),
        (
            [scheduler("Hinter"), "env=frozen_lake"],
            "Hinter is an ms-swift scheduler, and FrozenLake no ms-swift environment",
        ),
    ],
)
def test_a_wrong_scheduler_says_why(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        compose(["model.warm_start=null", *overrides])
