from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from envrl.env import Face, ToolCall
from envrl.model import format_tool_call, parse_tool_calls, tiny
from envrl.model.chat import Chat
from envrl.model.load import end_ids
from envrl.spec import TinySpec

SHAPE = TinySpec(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    initializer_range=0.1,
    vocab_size=600,
)
Game = Callable[[Chat, Face, int], list[int]]
MOVE = ToolCall("move", {"direction": "left"}, "call_0")


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    chat = Chat(tokenizer, template_kwargs={})
    return [str(tokenizer.decode([token])) for token in chat.encode(text)]


def test_cells_digits_and_arguments_stand_alone(trained: PreTrainedTokenizerFast) -> None:
    board = "You moved up. Now at row 1, col 2 (step 3).\nF F F F\nF P H G\nOutput your next move."
    cells = ["\nF", " F", " F", " F", "\nF", " P", " H", " G"]
    head = ["You moved up. Now at row ", "1", ", col ", "2", " (step ", "3", ")."]
    assert pieces(trained, board) == [*head, *cells, "\nOutput your next move."]
    assert pieces(trained, "<action>up</action>") == ["<action>", "up", "</action>"]
    call = ["<tool_call>", '\n{"name": "move", "arguments": {"direction": "', "left", '"}}\n', "</tool_call>"]
    assert pieces(trained, format_tool_call(MOVE)) == call


@pytest.mark.parametrize("face", Face)
def test_an_episode_of_four_turns_is_short(trained: PreTrainedTokenizerFast, game: Game, face: Face) -> None:
    chat = Chat(trained, template_kwargs={})
    games = [game(chat, face, seed) for seed in range(1000, 1100)]
    # One end token for the rules, and two per turn.
    four = [len(ids) for ids in games if ids.count(chat.turn_end) == 9]
    assert four
    assert max(four) <= 140


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    tokenizer = tiny.bootstrap_tokenizer()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("text", ["", "\r\n\t  x", "é 你好 \U0001f600", "<|end|> <tool_call>", "F F\n", " 7"])
def test_any_text_comes_back_after_training(trained: PreTrainedTokenizerFast, text: str) -> None:
    chat = Chat(trained, template_kwargs={})
    assert trained.decode(chat.encode(text)) == text


def test_training_is_the_same_in_every_process(texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\0".join(texts), "utf-8")
    code = "import sys; from pathlib import Path; from envrl.model.tiny import train_tokenizer; "
    code += "texts = Path(sys.argv[1]).read_text('utf-8').split('\\0'); "
    code += "train_tokenizer(texts, 450).save_pretrained(sys.argv[2])"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", code, str(tmp_path / "texts"), str(tmp_path / "there")]
    subprocess.run(command, env=environment, check=True)
    tiny.train_tokenizer(texts, 450).save_pretrained(tmp_path / "here")
    files = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert "tokenizer.json" in files
    for file in files:
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes()


def test_the_vocabulary_stays_within_its_size(texts: list[str]) -> None:
    assert len(tiny.train_tokenizer(texts, 320)) == 320
    assert len(tiny.train_tokenizer(["a"], 600)) == 256 + len(tiny.CONTROL + tiny.MARKUP)


def test_the_template_writes_structured_calls_as_the_model_does() -> None:
    tokenizer = tiny.bootstrap_tokenizer()
    function = {"name": MOVE.name, "arguments": MOVE.arguments}
    for call in (function, {"type": "function", "function": function}):
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        text = tokenizer.apply_chat_template([message], tokenize=False)
        assert text == f"<|assistant|>{format_tool_call(MOVE)}<|end|>"
        assert parse_tool_calls(str(text)) == [MOVE]


def test_generation_marks_cover_the_models_part() -> None:
    tokenizer = tiny.bootstrap_tokenizer()
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "ab"}]
    encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    assert tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m]) == "ab<|end|>"


def test_models_of_one_seed_are_equal_and_leave_torch_alone(trained: PreTrainedTokenizerFast) -> None:
    state = torch.random.get_rng_state()
    one, same, other = (tiny.build_model(SHAPE, trained, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    for (name, a), b, c in zip(one.named_parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert "norm" in name or not torch.equal(a, c)


def test_the_models_ends_and_ties(trained: PreTrainedTokenizerFast) -> None:
    model = tiny.build_model(SHAPE, trained, seed=0)
    chat = Chat(trained, template_kwargs={})
    assert end_ids(model) == [chat.turn_end]
    assert model.generation_config is not None
    assert model.generation_config.pad_token_id == trained.pad_token_id != chat.turn_end
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.vocab_size == len(trained) < SHAPE.vocab_size


def test_saved_and_loaded(trained: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model = tiny.build_model(SHAPE, trained, seed=0)
    model.save_pretrained(tmp_path)
    trained.save_pretrained(tmp_path)
    again, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = f"<|user|>F P\nG F<|end|><|assistant|>{format_tool_call(MOVE)}<|end|>"
    ids = Chat(trained, template_kwargs={}).encode(text)
    loaded = Chat(tokenizer, template_kwargs={})
    assert loaded.encode(text) == ids
    loaded.check(None)
    assert end_ids(again) == [loaded.turn_end]
    with torch.inference_mode():
        batch = torch.tensor([ids])
        assert torch.equal(model(batch).logits, again(batch).logits)


@pytest.mark.parametrize("text", ['{"word": "up"}', "[up]"])
def test_a_word_that_stands_alone_is_spelled_unless_it_is_a_choice(
    texts: list[str], trained: PreTrainedTokenizerFast, text: str
) -> None:
    assert "up" in trained.tokenize(text)
    speller = tiny.train_tokenizer(texts, 600)
    assert "up" not in speller.tokenize(text)
    assert speller.decode(speller.encode(text)) == text
