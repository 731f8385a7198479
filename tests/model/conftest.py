"""Real parts for the tests of this folder: Qwen's own vocabulary and chat template."""

from __future__ import annotations

import base64
from importlib import resources

import pytest
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


class QwenConverter(TikTokenConverter):
    """Reads the ranks from dashscope's file without the tiktoken package."""

    def load_tiktoken_bpe(self, tiktoken_url: str) -> dict[bytes, int]:  # type: ignore[override]
        lines = resources.files("dashscope").joinpath(tiktoken_url).read_text().splitlines()
        return {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}


@pytest.fixture(scope="session")
def qwen() -> PreTrainedTokenizerFast:
    """Qwen3's tokenizer, but for the ids of its special tokens."""
    backend = QwenConverter("resources/qwen.tiktoken", pattern=PATTERN).converted()
    backend.normalizer = normalizers.NFC()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_special_tokens({"extra_special_tokens": SPECIAL})
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    template = resources.files("trl").joinpath("chat_templates/qwen3.jinja")
    tokenizer.chat_template = template.read_text("utf-8")
    return tokenizer
