"""Seconds of a weight push, against a plain copy of the same bytes."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import torch

from envrl import compose
from envrl.model.weights import Weights
from envrl.stage.base import Run
from envrl.summary import Summary

TINY = ["model=tiny"]
SMALL = [
    *["model=tiny", "model.tiny.hidden_size=768", "model.tiny.intermediate_size=2304"],
    *["model.tiny.num_hidden_layers=6", "model.tiny.num_attention_heads=12", "model.tiny.head_dim=64"],
    "model.tiny.num_key_value_heads=4",
]
COLOCATE = ["vllm_mode=colocate"]
SERVER = ["vllm_mode=server", "vllm_mode.launch=true"]
PAIRS = 5


async def measure_push(name: str, folder: Path, overrides: list[str]) -> None:
    """Pushes and copies in turns, and prints medians."""
    spec = compose([*overrides, "stages=[train]", "model.warm_start=null", f"output_dir={folder / name}"])
    run = Run(spec, Summary(spec.digest))
    try:
        agent = await run.agent()
        weights = Weights(agent.model)
        places = [torch.empty_like(value) for _, value in weights]
        push_s, copy_s = [], []
        for version in range(1, PAIRS + 2):
            started = time.perf_counter()
            await agent.engine.load_weights(weights, version)
            pushed = time.perf_counter()
            for place, (_, value) in zip(places, weights, strict=True):
                place.copy_(value)
            push_s.append(pushed - started)
            copy_s.append(time.perf_counter() - pushed)
    finally:
        await run.close()
    gb = sum(place.nbytes for place in places) / 1e9
    push, copy = median(push_s[1:]), median(copy_s[1:])  # the first pair warms up
    print(
        f"push, {name}, {1000 * gb:.1f} MB: {1000 * push:.1f} ms, {gb / push:.2f} GB/s; "
        f"a copy {1000 * copy:.1f} ms, {gb / copy:.2f} GB/s; push / copy {push / copy:.1f}",
        flush=True,
    )
