from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envrl.env.base import ToolCall
from envrl.model import format_tool_call, parse_tool_calls, strip_thinking

CRANE = '<tool_call>\n{"name": "guess", "arguments": {"word": "crane"}}\n</tool_call>'


def guessed(text: str) -> list[object]:
    return [call.arguments.get("word") for call in parse_tool_calls(text)]


def test_a_call_among_words() -> None:
    assert parse_tool_calls(f"I try this. {CRANE} Done.") == [ToolCall("guess", {"word": "crane"}, "call_0")]


def test_several_calls_keep_their_order_and_have_distinct_ids() -> None:
    calls = parse_tool_calls(CRANE + CRANE.replace("crane", "slate"), prefix="turn_3")
    assert [call.arguments["word"] for call in calls] == ["crane", "slate"]
    assert [call.id for call in calls] == ["turn_3_0", "turn_3_1"]


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ('{"name":"guess","arguments":{"word":"cra</tool_call>', "invalid JSON"),
        ('{"name":"guess","arguments":{"word":"cra', "invalid JSON"),
        ('{"name":"guess","arguments":{"word":"crane"}}', "does not end with </tool_call>"),
        ('{"name":"guess","arguments":{"word":"crane"}} or so</tool_call>', "does not end with </tool_call>"),
        ('["guess", "crane"]</tool_call>', "must be a JSON object"),
        ('{"arguments":{"word":"crane"}}</tool_call>', 'no "name"'),
        ('{"name":7,"arguments":{}}</tool_call>', 'no "name"'),
        ('{"name":"guess","arguments":["crane"]}</tool_call>', '"arguments"'),
        ('{"name":"guess","arguments":null}</tool_call>', '"arguments"'),
        ('{"name":"guess","arguments":"crane"}</tool_call>', "invalid JSON"),
        ('{"name":"guess","arguments":{"word":NaN}}</tool_call>', "invalid JSON"),
        ('{"name":"guess","arguments":{"word":"\\ud800"}}</tool_call>', "invalid JSON"),
        ("[" * 100_000 + "</tool_call>", "invalid JSON"),
        ("</tool_call>", "invalid JSON"),
        ("", "invalid JSON"),
    ],
)
def test_a_malformed_call_tells_the_model_why(block: str, reason: str) -> None:
    (call,) = parse_tool_calls("<tool_call>" + block)
    assert call.error is not None
    assert reason in call.error


def test_a_malformed_call_does_not_swallow_the_next() -> None:
    broken, right = parse_tool_calls('<tool_call>{"name":"guess",' + CRANE)
    assert broken.error
    assert right == ToolCall("guess", {"word": "crane"}, "call_1")


def test_arguments_may_be_a_json_string() -> None:
    block = json.dumps({"name": "guess", "arguments": '{"word": "crane"}'})
    assert guessed(f"<tool_call>{block}</tool_call>") == ["crane"]


def test_a_call_without_arguments() -> None:
    (call,) = parse_tool_calls('<tool_call>{"name": "stay"}</tool_call>')
    assert (call.name, call.arguments, call.error) == ("stay", {}, None)


def test_tags_inside_strings_are_text() -> None:
    call = ToolCall("say", {"text": "</tool_call> and <tool_call>"}, "call_0")
    assert parse_tool_calls(format_tool_call(call)) == [call]


def test_calls_drafted_while_thinking_are_not_made() -> None:
    draft = CRANE.replace("crane", "aaaaa")
    assert guessed(f"<think>maybe {draft}</think>{CRANE}") == ["crane"]
    assert guessed(f"maybe {draft}</think>{CRANE}") == ["crane"]
    assert guessed(f"{CRANE}<think>then {draft}") == ["crane"]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("<think>[aaaaa]</think>[crane]", "[crane]"),
        ("[aaaaa]</think>[crane]", "[crane]"),
        ("[crane]<think>[aaaaa]", "[crane]"),
        ("<think>a</think>x<think>b</think>y", "xy"),
        ("<think>a<think>b</think>c</think>x", "x"),
        ("plain", "plain"),
    ],
)
def test_strip_thinking(text: str, spoken: str) -> None:
    assert strip_thinking(text) == spoken


words = st.text(max_size=8)
values = st.none() | st.booleans() | st.integers() | words
values |= st.lists(values, max_size=3) | st.dictionaries(words, values, max_size=3)


@given(st.text(min_size=1, max_size=8), st.dictionaries(words, values, max_size=3))
def test_formatting_is_the_inverse(name: str, arguments: dict[str, object]) -> None:
    call = ToolCall(name, arguments, "call_0")
    assert parse_tool_calls(format_tool_call(call)) == [call]


@given(st.text(alphabet=list('<>/{}[]":, \ntool_callthink')))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    parse_tool_calls(f"<tool_call>{text}")
