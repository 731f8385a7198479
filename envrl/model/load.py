"""Any causal language model of the Hugging Face kind, by path or hub id."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from envrl.errors import ConfigError
from envrl.model.lora import is_adapted


def load(
    name_or_path: str, *, dtype: str, attn_implementation: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer. Raises ConfigError where either cannot be had."""
    tokenizer = _pretrained(AutoTokenizer, name_or_path)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"model.name_or_path: the tokenizer of {name_or_path!r} has no chat template; "
            "choose an instruction-tuned model"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    settings = {"dtype": dtype, "attn_implementation": attn_implementation}
    model = _pretrained(AutoModelForCausalLM, name_or_path, **settings)
    if is_adapted(model):
        raise ConfigError(
            f"model.name_or_path: {name_or_path!r} is an adapter; give a model into which it was "
            "merged, such as the folder above an adapter/ of envrl's"
        )
    return model, tokenizer


def end_ids(model: PreTrainedModel) -> list[int]:
    """All end tokens that the model's generation config lists."""
    config = model.generation_config
    listed = None if config is None else config.eos_token_id
    if listed is None:
        return []
    return [listed] if isinstance(listed, int) else list(listed)


def describe(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes what an engine must know of a model before it gets its weights: config and tokenizer."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _pretrained(kind: Any, name_or_path: str, **settings: Any) -> Any:
    try:
        return kind.from_pretrained(name_or_path, **settings)
    except (OSError, ValueError, ImportError) as error:
        where = "this path" if Path(name_or_path).exists() else "the hub or its cache"
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"model.name_or_path: cannot load {name_or_path!r} from {where}: {reason}"
        ) from error
