"""The shipped terms over small records, and what names and weights of terms are refused."""

from __future__ import annotations

from typing import Any

import pytest

from envrl import compose
from envrl.errors import ConfigError
from envrl.reward import TERMS, is_group_term, resolve, total
from envrl.reward.terms import SUDOKU, WORDLE

CALL = '<tool_call>\n{"name": "guess", "arguments": {"word": "crane"}}\n</tool_call>'


def record(*texts: str, row: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """An episode in which the model said these texts."""
    spoken = [{"role": "assistant", "content": text} for text in texts]
    return {
        "row": row or {},
        "turns": [{"text": text, "failures": 0} for text in texts],
        "messages": [{"role": "user", "content": "Go: 7."}, *spoken],
        "metrics": {},
        "tokens": 100,
        "env_reward": 1.0,
        "success": True,
        **changes,
    }


@pytest.mark.parametrize(
    ("text", "formed"),
    [
        (CALL, 1),
        (CALL + "\n" + CALL, 1),
        ("[crane]", 1),
        ("", 1),
        (f"<think>\nHm.\n</think>\n\n{CALL}", 1),
        (f"\n<think>Hm, <tool_call>{{ is no call yet.</think>{CALL}", 1),
        (f"the prompt opened this thought</think>{CALL}", 1),
        (f"<think>Hm.{CALL}", 0),
        (f"<think>a</think><think>b</think>{CALL}", 0),
        (f"<think>a</think>{CALL}<think>b</think>", 0),
        (f"{CALL}<think>b</think>", 0),
        ("<think><think>a</think>", 0),
        (CALL.replace("}}", ""), 0),
        ("<tool_call>crane</tool_call>", 0),
        (CALL.removesuffix("</tool_call>"), 0),
    ],
)
def test_format_of_a_turn(text: str, formed: int) -> None:
    assert TERMS["format"](record(text)) == formed


def test_format_asks_for_every_turn_and_for_one_at_least() -> None:
    assert TERMS["format"](record(CALL, CALL)) == 1
    assert TERMS["format"](record(CALL, "<think>", CALL)) == 0
    assert TERMS["format"](record()) == 0


def test_length_is_the_price_of_a_thousand_tokens() -> None:
    assert TERMS["length"](record(tokens=250)) == -0.25
    assert TERMS["length"](record(tokens=0)) == 0


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("72", "72", 1),
        (" Paris \n", "paris", 1),
        ("It is Paris.", "Paris", 0),
        ("It is \\boxed{Paris}.", "Paris", 1),
        ("17 * 4 = 68, so the answer is 72.", 72, 1),
        ("72 is what I said, not 68", 72, 0),
        ("<think>72</think> I do not know", 72, 0),
        ("<think>it may be 5</think> 72", 72, 1),
        ("\\boxed{72}, as 70 + 2", "72", 1),
        ("\\boxed{70} and then \\boxed{72}", "72", 1),
        ("\\boxed{70}, not 72", "72", 0),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", 1),
        ("1,234,567 dollars", 1234567, 1),
        ("1,2", 2, 1),
        ("0.50", 0.5, 1),
        ("5 - 12 = -7", -7, 1),
        ("5 - 12 = 7", -7, 0),
        ("12-7", 7, 1),
        ("12345678901234567891", "12345678901234567890", 0),
        ("nothing", "72", 0),
    ],
)
def test_an_answer_is_the_whole_message_boxed_or_its_last_number(
    said: str, answer: object, right: int
) -> None:
    assert TERMS["answer"](record(CALL, said, row={"answer": answer})) == right


def test_without_an_answer_column_there_is_no_score() -> None:
    assert TERMS["answer"](record("72")) is None
    assert TERMS["answer"](record("72", row={"answer": None})) is None
    assert TERMS["answer"](record(row={"answer": "72"})) == 0


def test_each_games_terms_score_that_game_alone() -> None:
    wordle = record(metrics={"win_reward": 1.25, "partial_reward": 0.0, "invalid_reward": -0.1, "guesses": 3})
    sudoku = record(metrics=dict(zip(SUDOKU, (1.0, 0.5, -1.0, 0.25, 0.0), strict=True)))
    assert {name: TERMS[name](wordle) for name in SUDOKU} == dict.fromkeys(SUDOKU)
    assert {name: TERMS[name](sudoku) for name in WORDLE} == dict.fromkeys(WORDLE)
    assert [TERMS[name](wordle) for name in WORDLE] == [1.25, 0.0, -0.1]
    assert [TERMS[name](sudoku) for name in SUDOKU] == [1.0, 0.5, -1.0, 0.25, 0.0]


def test_no_shipped_term_wants_a_group() -> None:
    assert not [name for name, term in TERMS.items() if is_group_term(term)]


def test_none_is_left_out_of_the_sum() -> None:
    assert total({"format": 1.0, "env": None}, {"format": 0.2, "env": 1.0}) == 0.2
    assert total({"format": None, "env": None}, None) is None
    assert total({"format": 1.0, "env": 0.5}, {"format": 0.2}) == 0.7


def test_unknown_terms_list_what_there_is() -> None:
    with pytest.raises(ConfigError, match="unknown 'lenght'; did you mean length"):
        resolve("lenght")
    with pytest.raises(ConfigError, match="not callable, got tuple"):
        resolve("envrl.reward.terms:SUDOKU")
    with pytest.raises(ConfigError, match="must take a record, or .* as TRL's do: missing .*'weights'"):
        resolve("envrl.reward.terms:total")


@pytest.mark.parametrize(
    "overrides",
    [
        ["reward.terms=[format,env]", "reward.weights=[0.2]"],
        ["reward.weights=[0.2,1]"],
        ["reward.weights=[]"],
    ],
)
def test_a_list_of_weights_goes_with_a_list_of_terms(overrides: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"reward\.weights: a list has one weight per term of reward\.terms="
    ):
        compose(overrides)
