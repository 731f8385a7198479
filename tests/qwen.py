"""Qwen3's tokenizer without the hub: the vocabulary from dashscope's wheel, the template from TRL's."""

from __future__ import annotations

import base64
from importlib.metadata import distribution
from pathlib import Path

from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def packaged(package: str, file: str) -> str:
    """A data file of an installed package, which is not imported for it."""
    return Path(str(distribution(package).locate_file(file))).read_text("utf-8")


class QwenConverter(TikTokenConverter):
    """Reads the ranks from dashscope's file without the tiktoken package."""

    def load_tiktoken_bpe(self, tiktoken_url: str) -> dict[bytes, int]:  # type: ignore[override]
        lines = packaged("dashscope", tiktoken_url).splitlines()
        return {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}


def tokenizer() -> PreTrainedTokenizerFast:
    backend = QwenConverter("dashscope/resources/qwen.tiktoken", pattern=PATTERN).converted()
    backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    made.chat_template = packaged("trl", "trl/chat_templates/qwen3.jinja")
    return made
