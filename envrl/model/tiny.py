"""The tiny model: a Qwen3 of a few hundred thousand weights, with a tokenizer and chat template of its own.

The tokenizer is byte-level BPE over the environments' own games. Its pre-tokenizer is made for games:
what a move depends on stands alone, and all prose around it may merge, across words, into a few tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from envrl.spec import TinySpec

PAD, END = "<|pad|>", "<|end|>"
CONTROL = [PAD, END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
MARKUP = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
"""Tokens that are part of what the model says."""

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|system|>' }}
    {%- for tool in tools %}
        {{- '\\n' if not loop.first }}{{ tool.function.name + '(' }}
        {%- for name, argument in tool.function.parameters.properties.items() %}
            {{- ', ' if not loop.first }}{{ name + ': ' }}
            {{- argument.enum | join('|') if argument.enum else argument.type }}
        {%- endfor %}
        {{- ')' }}
    {%- endfor %}
    {{- '<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content or '' }}
            {%- for call in message.tool_calls or [] %}
                {%- set call = call.function or call %}
                {{- '\\n' if message.content or not loop.first }}
                {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
                {{- call.arguments if call.arguments is string else call.arguments | tojson }}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
            {{- '<|end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- (message.content or '') + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""

ALONE = "|".join(
    [
        r"[ \n]\S(?=\n|\z| \S(?:[ \n]|\z))",  # one cell of a board: a character with the blank before it
        r"\d",
        r'(?<=: ")(?<!"name": ")[^"\s]+(?=")',  # an argument; a tool's name belongs to the prose before it
        r"(?<=[>\[])[^\s<\]]+(?=[<\]])",  # <action>up</action>, [crane]
    ]
)
"""What never merges with its neighbours. All between two such matches may."""

SPELLED = r"\A(?!(?:%s)\z)(?=[a-z]+\z)[a-z]|\G(?!\A)[a-z]"
"""The letters of a word that stands alone, unless it is one of a tool's few choices: a guess is spelled."""


def bootstrap_tokenizer() -> PreTrainedTokenizerFast:
    """The same template over single bytes: it renders the games that the tokenizer is trained on."""
    return _wrapped(_untrained([]))


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, *, choices: Iterable[str] = ()
) -> PreTrainedTokenizerFast:
    """Byte-level BPE with at most this many tokens. The same texts give the same tokenizer.

    The texts are rendered conversations; the special tokens in them are not learnt as text. `choices` are
    the arguments that stay whole; any other word that stands alone is spelled.
    """
    tokenizer = _untrained(choices)
    special = re.compile("|".join(map(re.escape, CONTROL + MARKUP)))
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(CONTROL + MARKUP),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator((part for text in texts for part in special.split(text)), trainer)
    return _wrapped(tokenizer)


def build_model(tiny: TinySpec, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Qwen3ForCausalLM:
    """Freshly drawn weights for a tokenizer, in float32; torch's own random state is left as it was."""
    shape: dict[str, Any] = tiny.model_dump(exclude={"vocab_size"})
    end, pad = (tokenizer.get_vocab()[token] for token in (END, PAD))
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": pad}
    config = Qwen3Config(**shape, **ids, vocab_size=len(tokenizer), tie_word_embeddings=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[end], pad_token_id=pad)  # type: ignore[no-untyped-call]
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _untrained(choices: Iterable[str]) -> Tokenizer:
    whole = "|".join(sorted(choice for choice in choices if re.fullmatch("[a-z]+", choice))) or "(?!)"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(ALONE), behavior="isolated"),
            pre_tokenizers.Split(Regex(SPELLED % whole), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKUP])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
