from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 48

Build = Callable[..., PreTrainedModel]


@pytest.fixture(scope="session")
def build() -> Build:
    """Builds a tiny random model whose distributions are far from uniform."""

    def build(kind: str = "qwen3", **changes: object) -> PreTrainedModel:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        settings: dict[str, object] = {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
            "initializer_range": 0.3,
        } | changes
        if kind == "llama":
            return LlamaForCausalLM(LlamaConfig(**settings))
        return Qwen3ForCausalLM(Qwen3Config(**settings))

    return build


@pytest.fixture
def model(build: Build) -> PreTrainedModel:
    return build()
