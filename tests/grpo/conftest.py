from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from envrl import compose
from envrl.rollout.transcript import TokenRow
from envrl.spec import GrpoSpec

VOCABULARY = 64


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    """A Qwen3 of 30,000 parameters whose logits are far from flat."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<end>": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<end>"
    )


@pytest.fixture
def spec() -> GrpoSpec:
    """One update per step, and every correction that needs no other model."""
    return compose(
        [
            "grpo.steps=10",
            "grpo.num_generations=4",
            "grpo.groups_per_step=2",
            "grpo.learning_rate=1e-2",
            "grpo.lr_schedule=constant",
            "grpo.warmup_steps=0",
            "grpo.micro_batch_tokens=64",
        ]
    ).grpo


def _random_row(rng: random.Random, *, advantage: float | None = None, truncated: bool = False) -> TokenRow:
    """A prompt, two turns, and an observation between them; ids include those of padding and end."""
    advantage = rng.uniform(-2, 2) if advantage is None else advantage
    mask = [0] * rng.randint(2, 9)
    for sampled, count in ((1, rng.randint(1, 9)), (0, rng.randint(1, 6)), (1, rng.randint(1, 9))):
        mask += [sampled] * count
    ids = [rng.randrange(VOCABULARY) for _ in mask]
    logprobs = [-rng.uniform(0.5, 6.0) * m for m in mask]
    return TokenRow(ids, mask, logprobs, [advantage * m for m in mask], truncated)


@pytest.fixture
def random_row() -> Callable[..., TokenRow]:
    return _random_row


@pytest.fixture
def rows() -> list[TokenRow]:
    rng = random.Random(0)
    return [_random_row(rng) for _ in range(8)]
