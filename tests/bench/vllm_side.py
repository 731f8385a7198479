"""One side of the comparison of rollouts on vLLM, in its own process; the same talk as in grpo_side.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpo_side
from grpo_side import GROUPS, MEMBERS, Parent

CONTEXT = 1024
BLOCK = 32
"""Tokens of a block of the cache: only whole blocks are shared, and prompts are short."""
KV_BYTES = 1 << 28
CPU = {
    "dtype": "float32",
    "max_model_len": CONTEXT,
    "max_num_batched_tokens": 4096,
    "enable_chunked_prefill": False,
    "block_size": BLOCK,
    "kv_cache_memory_bytes": KV_BYTES,
    "enforce_eager": True,
    "enable_prefix_caching": True,
}


def trl(parent: Parent, folder: Path, steps: int) -> None:
    """TRL's GRPOTrainer with environment_factory and vLLM in its process.

    Its weight push loads a module that has packed its weights on a CPU, and fails there; so both sides keep
    what the engine has loaded, and no push is in the times.
    """
    import vllm
    from trl.generation import vllm_generation

    class CpuLLM(vllm.LLM):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**(settings | CPU))

    vllm_generation.LLM = CpuLLM
    vllm_generation.VLLMGeneration.sync_weights = lambda self: None
    grpo_side.trl(parent, folder, steps, use_vllm=True, vllm_mode="colocate", vllm_max_model_length=CONTEXT)


sides = {"trl": trl}

if __name__ == "__main__":
    sides[sys.argv[1]](Parent(), Path(sys.argv[2]), int(sys.argv[3]))
