"""Whether a running server may serve the trainer: what it is, against what is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from envrl.engine.vllm.arguments import LOGPROBS, WORKER
from envrl.engine.vllm.client import PAUSE_S, Client, Refused, ServerDown
from envrl.errors import ConfigError, StageError

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "tie_word_embeddings",
)
PROBE = 'Go to (3, 4): guess\t\'naïve\' — 7 × 8 = 56?\n\n{"name": "café", "été": [1.5, null]} 你好'
"""Every tokenizer has its own way with it."""


MODEL = "the model of model.name_or_path"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What the trainer needs of a server."""

    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    min_context: int
    """Tokens; a prompt must fit beside them."""
    backend: str
    """How weights travel."""


@dataclass(frozen=True)
class Served:
    """What a server is."""

    max_context: int
    dtype: str
    """Of its weights, by torch's name."""


async def judged(client: Client, needs: Needs) -> Served:
    """What a server is. Raises ConfigError where it may not be used, ServerDown where it is not up."""
    served, faults = await _inspect(client, needs)
    if served is None or faults:
        raise ConfigError("\n".join(f"vllm_mode.url: {client.url} {fault}" for fault in faults))
    return served


async def reached(client: Client, needs: Needs, patience_s: float) -> Served:
    """The same, of one that may still be starting. Raises StageError where it does not come up."""
    deadline = monotonic() + patience_s
    while True:
        try:
            return await judged(client, needs)
        except ServerDown as error:
            if monotonic() > deadline:
                mend = "start it, or vllm_mode.launch=true"
                reason = f"{error} (tried for {patience_s:g} s)"
                raise StageError(f"vllm_mode.url: {reason}; mend: {mend}") from error
        await asyncio.sleep(PAUSE_S)


async def _inspect(client: Client, needs: Needs) -> tuple[Served | None, list[str]]:
    """What the server is, if it tells, and what is wrong with that."""
    try:
        info = await client.info()
    except Refused as error:
        reason = str(error).removeprefix(f"{client.url}: ")
        mend = "if it is vLLM, start it with VLLM_SERVER_DEV_MODE=1 in its environment"
        return None, [f"does not tell what it is ({reason}); mend: {mend}"]
    model = info["model_config"]
    served = Served(model["max_model_len"], model["dtype"].removeprefix("torch."))
    faults = [*_settings(info, needs)]
    if info["parallel_config"]["worker_extension_cls"] == WORKER:
        faults += _model(await client.describe(*SIZES), needs.config)
    theirs = await client.tokenize(PROBE)
    ours = needs.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    if theirs is not None and theirs != ours:
        same = next(i for i in count() if theirs[i : i + 1] != ours[i : i + 1])
        ids = f"{theirs[same : same + 5]}, the trainer's is {ours[same : same + 5]}"
        mend = f"start it with the tokenizer of {MODEL}"
        faults.append(
            f"has another vocabulary: after {same} tokens its {PROBE[:12]!r}... is {ids}; mend: {mend}"
        )
    if served.max_context <= needs.min_context:
        needed = f"scheduler.max_tokens={needs.min_context} and a prompt are needed"
        mend = "start it with a larger --max-model-len, or lower scheduler.max_tokens"
        faults.append(f"has too short a context: {served.max_context} tokens, and {needed}; mend: {mend}")
    return served, faults


def _settings(info: dict[str, Any], needs: Needs) -> Iterator[str]:
    """How it was started."""
    if (mode := info["model_config"]["logprobs_mode"]) != LOGPROBS:
        flag = f"--logprobs-mode {LOGPROBS}"
        yield f"has logprobs_mode={mode}, and {LOGPROBS} are needed; mend: start it with {flag}"
    if (worker := info["parallel_config"]["worker_extension_cls"]) != WORKER:
        flag = f"--worker-extension-cls {WORKER}"
        yield f"has worker_extension_cls={worker or None}, and {WORKER} is needed; mend: start it with {flag}"
    backend = (info["weight_transfer_config"] or {}).get("backend")
    if backend != needs.backend:
        flag = f'--weight-transfer-config \'{{"backend": "{needs.backend}"}}\''
        yield f"takes weights by {backend}, and they come by {needs.backend}; mend: start it with {flag}"


def _model(theirs: dict[str, Any], config: PretrainedConfig) -> Iterator[str]:
    """The model that it serves."""
    text = config.get_text_config(decoder=True)
    ours: dict[str, Any] = {name: getattr(text, name, None) for name in SIZES}
    ours["architecture"] = config.architectures[0] if config.architectures else None
    mend = f"start it with {MODEL}"
    if (size := ours.pop("vocab_size")) != theirs["vocab_size"]:
        sizes = f"{theirs['vocab_size']} tokens, the trainer's has {size}"
        yield f"has another vocabulary: {sizes}; mend: {mend}"
    if others := [name for name, value in ours.items() if value != theirs[name]]:
        told = ", ".join(f"{name} is {theirs[name]}, the trainer's {ours[name]}" for name in others)
        yield f"serves another model: {told}; mend: {mend}"
