from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from envrl.errors import ConfigError
from envrl.model.load import end_ids, load
from envrl.model.tiny import bootstrap_tokenizer, build_model
from envrl.spec import TinySpec

SHAPE = TinySpec(
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=64,
    initializer_range=0.1,
    vocab_size=300,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model with its tokenizer."""
    tokenizer = bootstrap_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    build_model(SHAPE, tokenizer, seed=0).save_pretrained(tmp_path)
    return tmp_path


def test_a_saved_model(folder: Path) -> None:
    model, tokenizer = load(str(folder), dtype="bfloat16", attn_implementation="eager")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "eager"
    assert end_ids(model) == [tokenizer.eos_token_id]


def test_a_tokenizer_without_padding_pads_with_its_end(folder: Path) -> None:
    tokenizer = bootstrap_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    _, loaded = load(str(folder), dtype="float32", attn_implementation="sdpa")
    assert loaded.pad_token_id == loaded.eos_token_id


def test_a_tokenizer_without_a_template_is_refused(folder: Path) -> None:
    for path in folder.glob("*.jinja"):
        path.unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load(str(folder), dtype="float32", attn_implementation="sdpa")


@pytest.mark.parametrize("name", ["no/such-model", "./nowhere", "not a name"])
def test_what_cannot_be_had_is_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=f"model.name_or_path: cannot load '{name}'") as raised:
        load(name, dtype="float32", attn_implementation="sdpa")
    assert "\n" not in str(raised.value)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot load .* from this path"):
        load(str(folder), dtype="float32", attn_implementation="sdpa")


def test_end_ids_of_any_generation_config() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8))
    assert model.generation_config is not None
    for listed, ids in ((None, []), (3, [3]), ([3, 4], [3, 4])):
        model.generation_config.eos_token_id = listed
        assert end_ids(model) == ids
