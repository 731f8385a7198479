"""One side of the comparison of rollouts on vLLM, in its own process; the same talk as in grpo_side.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpo_side
from grpo_side import GROUPS, MEMBERS, Parent

from envrl.engine.vllm.environment import prepare

OVERRIDES = ["vllm_mode=colocate", f"vllm_mode.max_num_seqs={GROUPS * MEMBERS}"]
SHARED = (
    "dtype",
    "max_model_len",
    "max_num_seqs",
    "enforce_eager",
    "enable_prefix_caching",
    "logprobs_mode",
    "kv_cache_memory_bytes",
    "enable_chunked_prefill",
    "max_num_batched_tokens",
    "block_size",
)
"""Engine arguments that TRL's side takes from ours: a CPU needs most of them, and TRL cannot set them."""


def ours(parent: Parent, folder: Path, steps: int) -> None:
    """envrl's train stage on a colocated engine."""
    grpo_side.ours(parent, folder, steps, overrides=OVERRIDES)


def trl(parent: Parent, folder: Path, steps: int) -> None:
    """TRL's GRPOTrainer with environment_factory and vLLM in its process.

    On a CPU its weight push fails, since vLLM has packed the weights there. It is left out, and the engine
    keeps those that both sides begin with.
    """
    import vllm
    from trl.generation import vllm_generation

    from envrl import compose
    from envrl.engine.vllm.arguments import engine_arguments
    from envrl.spec import ColocateSpec

    spec = compose([*OVERRIDES, f"model.name_or_path={folder / 'model'}"])
    assert isinstance(spec.vllm_mode, ColocateSpec)
    arguments = engine_arguments(spec.vllm_mode, folder, dtype="float32", max_context=1024, on_gpu=False)

    class AsOurs(vllm.LLM):  # type: ignore[misc]  # vLLM need not be there
        def __init__(self, **settings: Any) -> None:
            super().__init__(**{**settings, **{name: arguments[name] for name in SHARED}})

    vllm_generation.LLM = AsOurs  # type: ignore[attr-defined]
    vllm_generation.VLLMGeneration.sync_weights = lambda self: None  # type: ignore[method-assign]
    grpo_side.trl(parent, folder, steps, use_vllm=True, vllm_mode="colocate")


sides = {"ours": ours, "trl": trl}

if __name__ == "__main__":
    prepare(threads=1)
    sides[sys.argv[1]](Parent(), Path(sys.argv[2]), int(sys.argv[3]))
