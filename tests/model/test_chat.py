from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from envrl.env.frozen_lake import FrozenLake
from envrl.env.schema import tool_schemas
from envrl.errors import ConfigError
from envrl.model.chat import Chat
from envrl.model.tiny import CHAT_TEMPLATE, bootstrap_tokenizer

Message = dict[str, Any]
TOOLS: list[Any] = tool_schemas(FrozenLake())
CALL = '<tool_call>\n{"name": "move", "arguments": {"direction": "up"}}\n</tool_call>'
TINY = bootstrap_tokenizer()


@pytest.fixture(params=["tiny", "qwen", "qwen thinking", "qwen not thinking"])
def chat(request: pytest.FixtureRequest) -> Chat:
    if request.param == "tiny":
        return Chat(TINY, template_kwargs={})
    tokenizer = request.getfixturevalue("qwen")
    settings = {} if request.param == "qwen" else {"enable_thinking": request.param == "qwen thinking"}
    return Chat(tokenizer, template_kwargs=settings)


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def rendered(chat: Chat, messages: list[Message], tools: Any = None) -> str:
    """By the template alone, without anything that Chat keeps."""
    tokenizer, kwargs = chat._tokenizer, chat._kwargs
    text = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True, **kwargs
    )
    return str(text)


def patched(old: str, new: str) -> Chat:
    """The tiny template with a fault in it."""
    tokenizer = bootstrap_tokenizer()
    assert old in CHAT_TEMPLATE
    tokenizer.chat_template = CHAT_TEMPLATE.replace(old, new)
    return Chat(tokenizer, template_kwargs={})


@pytest.mark.parametrize("tools", [TOOLS, None])
def test_good_templates_pass_the_check(chat: Chat, tools: Any) -> None:
    chat.check(tools)


def test_a_prompt_is_the_templates(chat: Chat) -> None:
    messages = [said("system", "Play."), said("user", "P F\nF G")]
    for tools in (TOOLS, None):
        text = rendered(chat, messages, tools)
        expected = chat._tokenizer(text, add_special_tokens=False)["input_ids"]
        assert chat.start(messages, tools) == chat.start(messages, tools) == expected


@pytest.mark.parametrize(
    "content", ["", " \n ", "F F\nP G", "<tool_response>x</tool_response>", "a</think>b"]
)
@pytest.mark.parametrize("roles", [["user"], ["tool"], ["tool", "tool"], ["tool", "user"], []])
def test_an_extension_is_what_the_template_puts_behind_a_turn(
    chat: Chat, roles: list[str], content: str
) -> None:
    new = [{**said(role, content), "name": "move", "tool_call_id": "call_0"} for role in roles]
    history = [said("system", "s"), said("user", "u"), said("assistant", CALL), said("tool", "t")]
    whole = rendered(chat, [*history, said("assistant", "I go SPOKEN"), *new], TOOLS)
    behind = whole.partition("SPOKEN")[2]
    assert [chat.turn_end, *chat.extend(new)] == chat.encode(behind)
    assert chat.extend(new) == chat.extend(new)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.text(), st.text())
def test_any_content_is_rendered_as_the_template_does(chat: Chat, first: str, second: str) -> None:
    new = [said("tool", first), said("tool", second)]
    whole = rendered(chat, [said("user", "x"), said("assistant", "SPOKEN"), *new])
    assert [chat.turn_end, *chat.extend(new)] == chat.encode(whole.partition("SPOKEN")[2])


def test_contents_that_a_template_alters_are_altered() -> None:
    chat = patched("(message.content or '')", "(message.content | trim)")
    chat.check(TOOLS)
    assert chat.decode(chat.extend([said("user", "  F G ")])) == "<|user|>F G<|end|><|assistant|>"
    assert chat.decode(chat.extend([said("user", "F G")])) == "<|user|>F G<|end|><|assistant|>"


def test_contents_need_not_be_text() -> None:
    chat = Chat(TINY, template_kwargs={})
    assert chat.decode(chat.extend([{"role": "user", "content": None}])) == "<|user|><|end|><|assistant|>"


def test_sampled_thinking_stays_and_is_counted_once(qwen: PreTrainedTokenizerFast) -> None:
    chat = Chat(qwen, template_kwargs={})
    turn = [*chat.encode("<think>a</think>[crane]"), chat.turn_end]
    first = chat.start([said("user", "Guess.")]) + turn
    second = first + chat.extend([said("user", "XGXXX")]) + turn
    assert second[: len(first)] == first
    assert str(qwen.decode(second)).count("<think>") == 2


def test_sampled_ids_need_not_be_those_of_their_text(qwen: PreTrainedTokenizerFast) -> None:
    chat = Chat(qwen, template_kwargs={})
    sampled = [*chat.encode("he"), *chat.encode("llo")]
    assert chat.encode("hello") != sampled
    assert chat.decode([*sampled, chat.turn_end]) == "hello"


def test_decoding_drops_the_end_token_only(qwen: PreTrainedTokenizerFast) -> None:
    (other,) = qwen.convert_tokens_to_ids(["<|endoftext|>"])
    chat = Chat(qwen, template_kwargs={}, stop_ids=[other])
    assert chat.stop_ids == {chat.turn_end, other}
    assert qwen.decode([chat.turn_end]) == "<|im_end|>"
    ids = chat.encode(f"<think>Hm.</think> {CALL}")
    for stop in (chat.turn_end, other):
        assert chat.decode([*ids, stop]) == f"<think>Hm.</think> {CALL}"
    assert chat.decode(ids) == f"<think>Hm.</think> {CALL}"
    assert chat.decode([]) == ""


def test_no_text_is_cut() -> None:
    tokenizer = bootstrap_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(8)
    assert len(Chat(tokenizer, template_kwargs={}).encode("a" * 50)) == 50


def test_markup_is_one_token_each(qwen: PreTrainedTokenizerFast) -> None:
    for tokenizer in (qwen, TINY):
        assert len(Chat(tokenizer, template_kwargs={}).encode("<tool_call></tool_call><think></think>")) == 4


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("'<|' + message.role + '|>'", "'<|' + message.role + '|>' ~ loop.index", "depends on the history"),
        ("{{- '<|' +", "{{- '!' if tools }}{{- '<|' +", "depends on the history"),
        ("(message.content or '')", "(message.content if message.role != 'tool' else '')", "role tool"),
        ("{{- '<|' +", "{{- raise_exception('no tools') if message.role == 'tool' }}{{- '<|' +", "no tools"),
        ("for message in messages", "for message in messages[(1 if add_generation_prompt else 0):]", "asks"),
    ],
)
def test_templates_that_cannot_be_appended_to_are_refused(old: str, new: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        patched(old, new).check(TOOLS)


def test_a_turn_needs_a_special_token_at_its_end() -> None:
    with pytest.raises(ConfigError, match="no special token ends an assistant turn"):
        patched("{{- '<|end|>' }}\n        {%- endgeneration", "{{- '.' }}\n        {%- endgeneration")


def test_a_turn_ends_the_same_way_before_any_message() -> None:
    end = "'<|end|>' if (messages[loop.index0 + 1] | default({'role': ''})).role != 'tool' else '<|tool|>'"
    with pytest.raises(ConfigError, match=r"a turn ends with '<\|end\|>', but here with '<\|tool\|>"):
        patched("'<|end|>' }}\n        {%- endgeneration", f"{end} }}}}\n        {{%- endgeneration").check(
            TOOLS
        )


def test_a_tokenizer_that_reads_the_start_of_a_text_differently_is_refused() -> None:
    tokenizer = bootstrap_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace("endgeneration %}", "endgeneration %}{{- '.' }}")
    first = pre_tokenizers.Metaspace(prepend_scheme="first")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_only])
    with pytest.raises(ConfigError, match="stands alone"):
        Chat(tokenizer, template_kwargs={}).check(None)
