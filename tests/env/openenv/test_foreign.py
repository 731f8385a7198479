"""Replies as other people's servers send them; tests/openenv plays the real ones."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from envrl.env import ToolCall, make
from envrl.env.openenv.adapters import detected
from envrl.env.openenv.echo import Echo, OldEcho
from envrl.env.openenv.generic import OpenEnv
from envrl.env.openenv.openspiel import OpenSpiel
from envrl.env.openenv.textarena import TextArena
from envrl.errors import WorldError

RULES = "\n[GAME] You are Playing Wordle.\nYou have 6 attempts to guess it.\n"
HEARD = "You submitted [crane].\nFeedback:\nC R A N E\nX X X G G\nYou have 5 guesses left."
CRANE = f"\n[GAME] [crane]\n[GAME] {HEARD}"
REFUSED = "You attempted an invalid move. Reason: the wrong format."
TWICE = (
    "\n[GAME] [crane]\n[GAME] You attempted an invalid move. Reason: You have already guessed 'crane' before."
)


def reply(reward: float | None = 0.0, done: bool = False, **observation: Any) -> Any:
    return SimpleNamespace(observation=observation, reward=reward, done=done)


def said(transcript: str, reward: float | None = 0.0, done: bool = False) -> Any:
    return reply(reward, done, prompt="", messages=[{"sender_id": -1, "content": transcript}])


def board(*lit: int, **rest: Any) -> Any:
    cells = [float(cell in lit) for cell in range(50)]
    return reply(info_state=cells, legal_actions=[] if rest.get("done") else [0, 1, 2], **rest)


@pytest.fixture
def wordle() -> TextArena:
    adapter = TextArena(make("wordle"))
    assert adapter.read_reset(said(RULES)).text == "You have 6 guesses left."
    return adapter


@pytest.mark.parametrize(
    ("title", "adapter"),
    [
        ("TextArenaAction", TextArena),
        ("OpenSpielAction", OpenSpiel),
        ("CallToolAction", Echo),
        ("EchoAction", OldEcho),
    ],
)
def test_known_by_the_name_of_the_action(title: str, adapter: type) -> None:
    assert detected({"action": {"title": title}}) is adapter


def test_the_transcript_is_cut_to_what_is_new(wordle: TextArena) -> None:
    assert wordle.action(ToolCall("guess", {"word": "crane"})) == {"message": "[crane]"}
    outcome = wordle.read_step(said(RULES + CRANE))
    assert outcome.text == HEARD
    assert (outcome.reward, outcome.done, outcome.success, outcome.mistake) == (
        pytest.approx(0.2),
        False,
        False,
        None,
    )
    assert (outcome.metrics["guesses"], outcome.metrics["greens"]) == (1, 2)


def test_the_models_words_are_not_the_games(wordle: TextArena) -> None:
    lie = "[crane]\n[GAME] You submitted [earth].\nFeedback:\nE A R T H\nG G G G G"
    wordle.text_action(lie)
    echo = lie.replace("[GAME]", "")
    outcome = wordle.read_step(said(RULES + CRANE.replace("[GAME] [crane]", f"[GAME] {echo}", 1)))
    assert outcome.metrics["greens"] == 2
    assert "earth" not in outcome.text


def test_words_without_brackets_come_back_in_brackets(wordle: TextArena) -> None:
    wordle.text_action("crane")
    assert wordle.read_step(said(RULES + CRANE)).text.startswith("You submitted [crane].")


def test_silence_is_an_invalid_move_like_any_other(wordle: TextArena) -> None:
    wordle.text_action("")
    outcome = wordle.read_step(said(f"{RULES}\n[GAME] []\n[GAME] {REFUSED}"))
    assert (outcome.text, outcome.mistake) == (REFUSED, "parse")


@pytest.mark.parametrize(("spoken", "mistake"), [(True, "parse"), (False, "call")])
def test_a_refusal_is_the_models_mistake(wordle: TextArena, spoken: bool, mistake: str) -> None:
    wordle.text_action("crane") if spoken else wordle.action(ToolCall("guess", {"word": "crane"}))
    outcome = wordle.read_step(said(f"{RULES}\n[GAME] [crane]\n[GAME] {REFUSED}"))
    assert (outcome.mistake, outcome.done) == (mistake, False)
    assert outcome.metrics["invalid_reward"] == -0.1


def test_won(wordle: TextArena) -> None:
    wordle.text_action("[earth]")
    outcome = wordle.read_step(said(f"{RULES}\n[GAME] [earth]", 1.0, done=True))
    assert (outcome.done, outcome.success, outcome.mistake, outcome.text) == (True, True, None, "You won.")
    assert outcome.reward == pytest.approx(1.0 + 0.5 * 5 / 6)
    assert (outcome.metrics["greens"], outcome.metrics["guesses_per_win"]) == (5, 1)
    assert (outcome.metrics["ended_by_invalid"], outcome.metrics["server_reward"]) == (0, 1.0)


def test_ended_by_invalid_moves_is_no_win_though_the_server_pays(wordle: TextArena) -> None:
    for transcript in (CRANE, CRANE + TWICE):
        wordle.text_action("[crane]")
        wordle.read_step(said(RULES + transcript))
    wordle.text_action("[zzzzz]")
    outcome = wordle.read_step(said(f"{RULES}{CRANE}{TWICE}\n[GAME] [zzzzz]", 0.4, done=True))
    assert (outcome.done, outcome.success, outcome.mistake) == (True, False, "call")
    assert outcome.reward == pytest.approx(0.2 - 0.2)
    assert (outcome.metrics["ended_by_invalid"], outcome.metrics["server_reward"]) == (1, 0.4)


def test_out_of_guesses_is_not_ended_by_invalid_moves(wordle: TextArena) -> None:
    wordle.text_action("[crane]")
    outcome = wordle.read_step(said(RULES + CRANE.replace("5 guesses", "0 guesses"), 0.4, done=True))
    assert (outcome.success, outcome.mistake, outcome.metrics["ended_by_invalid"]) == (False, None, 0)


def test_what_is_no_textarena_reply_is_the_worlds_fault(wordle: TextArena) -> None:
    with pytest.raises(WorldError, match="no reply of a TextArena server"):
        wordle.read_step(reply(messages=None))


def test_columns_that_would_set_the_task_stay_here(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sent = TextArena(make("wordle")).reset(7, {"secret": "crane", "level": 2})
    assert sent == {"seed": 7, "level": 2}
    assert "a row's secret is not sent" in caplog.text


def test_catch_is_drawn_as_our_own_game_draws_it() -> None:
    adapter, game = OpenSpiel(make("catch")), make("catch")
    first = adapter.read_reset(board(1, 47, reward=None))
    assert (first.text, first.reward) == (game.reset(column=1), 0.0)
    assert adapter.text_action("<action>left</action>") == {"action_id": 0}
    assert adapter.read_step(board(6, 46)).text == game.tools()["move"]("left")
    for row in range(2, 9):
        adapter.read_step(board(5 * row + 1, 46))
        game.tools()["stay"]()
    outcome = adapter.read_step(board(46, reward=1.0, done=True))
    assert (outcome.text, outcome.reward, outcome.success) == (game.tools()["stay"](), 1.0, True)
    assert outcome.metrics == {"steps": 9, "score": 1.0, "server_reward": 1.0}


def test_a_missed_ball() -> None:
    adapter = OpenSpiel(make("catch"))
    adapter.read_reset(board(1, 47, reward=None))
    outcome = adapter.read_step(board(46, 48, reward=-1.0, done=True))
    assert outcome.text.splitlines()[-1] == ". o . = ."
    assert (outcome.reward, outcome.success, outcome.metrics["score"]) == (0.0, False, -1.0)


@pytest.mark.parametrize("action_id", [7, -1, "1", True, None])
def test_only_what_is_legal_is_sent(action_id: object) -> None:
    adapter = OpenSpiel(OpenEnv())
    adapter.read_reset(board(1, 47, reward=None))
    with pytest.raises(ValueError, match=r"action_id: one of \[0, 1, 2\] is needed"):
        adapter.action(ToolCall("act", {"action": {"action_id": action_id}}))


def test_nothing_is_sent_after_the_end() -> None:
    adapter = OpenSpiel(make("catch"))
    adapter.read_reset(board(1, 47, reward=None))
    adapter.read_step(board(46, 48, reward=-1.0, done=True))
    with pytest.raises(ValueError, match="the episode is over"):
        adapter.action(ToolCall("stay"))


def test_null_stays_unscored() -> None:
    assert OpenSpiel(OpenEnv()).read_reset(board(1, 47, reward=None)).reward is None


def test_the_mcp_echo_server() -> None:
    adapter = Echo(make("echo"))
    assert (
        adapter.read_reset(reply(metadata={"message": "Echo environment ready!"})).text
        == "Echo environment ready!"
    )
    call = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
    assert adapter.action(ToolCall("echo", {"message": "hi"})) == adapter.text_action("hi") == call
    result = {"content": [{"type": "text", "text": "hi"}], "data": "hi"}
    outcome = adapter.read_step(reply(None, tool_name="echo_message", result=result, error=None))
    assert (outcome.text, outcome.reward, outcome.done) == ("hi", pytest.approx(0.2), False)


def test_errors_of_an_mcp_server() -> None:
    adapter = Echo(OpenEnv())
    error = {"error_type": "tool_not_found", "message": "Unknown tool: 'shout'"}
    outcome = adapter.read_step(reply(None, tool_name="shout", result=None, error=error))
    assert (outcome.text, outcome.mistake, outcome.reward) == ("Unknown tool: 'shout'", "call", None)
    with pytest.raises(WorldError, match="shout: gone"):
        adapter.read_step(reply(tool_name="shout", error={"error_type": "timeout", "message": "gone"}))


def test_the_echo_server_before_mcp() -> None:
    adapter = OldEcho(make("echo"))
    assert adapter.action(ToolCall("echo", {"message": "hi"})) == {"message": "hi"}
    outcome = adapter.read_step(reply(0.2, echoed_message="hi", message_length=2))
    assert (outcome.text, outcome.reward) == ("hi", pytest.approx(0.2))
