"""vLLM's engine arguments for a spec: what envrl relies on, what the device needs, what the user asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envrl.errors import ConfigError
from envrl.spec import ServerSpec, VllmSpec

WORKER = "envrl.engine.vllm.worker.Worker"
"""Loaded in vLLM's worker process."""
LOGPROBS = "processed_logprobs"
"""Those of the distribution that was sampled from."""
_BATCHED_TOKENS = 4096
_CPU_KV_GIB = 0.25


def engine_arguments(
    spec: VllmSpec, folder: Path, *, dtype: str, max_context: int, on_gpu: bool
) -> dict[str, Any]:
    """By the names of vLLM's EngineArgs; `folder` holds the model's config, `dtype` is the trainer's.

    Raises ConfigError where `args` names what envrl relies on.
    """
    length = min(spec.max_model_len or max_context, max_context)
    ours: dict[str, Any] = {
        "model": str(folder),
        "load_format": "dummy",  # the trainer's weights are pushed before the first request
        "max_model_len": length,
        "logprobs_mode": LOGPROBS,
        "generation_config": "vllm",  # else the model's own top_k and top_p apply unasked
        "enable_prefix_caching": True,
        "worker_extension_cls": WORKER,
    }
    if taken := sorted({*ours, *type(spec).model_fields} & spec.args.keys()):
        mend = "leave it out"
        if taken[0] in type(spec).model_fields:
            mend = f"vllm_mode.{taken[0]}={spec.args[taken[0]]}"
        raise ConfigError(f"vllm_mode.args.{taken[0]}: is envrl's to set; mend: {mend}")
    asked = {
        "dtype": dtype if spec.dtype == "auto" else spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "gpu_memory_utilization": spec.gpu_memory_utilization,
        "max_num_seqs": spec.max_num_seqs,
        "quantization": spec.quantization,
        "enforce_eager": not on_gpu if spec.enforce_eager is None else spec.enforce_eager,
    }
    kv_gib = spec.kv_cache_gib or (None if on_gpu else _CPU_KV_GIB)
    if kv_gib is not None:
        asked["kv_cache_memory_bytes"] = int(kv_gib * 2**30)
    device = {} if on_gpu else _cpu(length)
    return {
        **ours,
        **{name: value for name, value in asked.items() if value is not None},
        **device,
        **spec.args,
    }


def _cpu(length: int) -> dict[str, Any]:
    """vLLM's CPU build dies of chunked prefill with seeded requests, so a prompt goes in one piece."""
    return {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(_BATCHED_TOKENS, length),
        "block_size": 32,  # the CPU's default of 128 hides most prompts from the prefix cache
    }


def flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The same as flags of `vllm serve`, but for `model`, which stands alone there."""
    for name, value in arguments.items():
        if name == "model":
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield f"--{flag}"
            yield json.dumps(value) if isinstance(value, dict | list) else str(value)


def gpus_of(spec: ServerSpec, replica: int) -> str | None:
    """CUDA_VISIBLE_DEVICES of a launched server; None leaves it as it is."""
    if spec.gpus is None:
        return None
    start = replica * spec.tensor_parallel_size
    return ",".join(map(str, spec.gpus[start : start + spec.tensor_parallel_size]))
