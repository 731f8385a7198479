"""A request in vLLM's words, and its answer in ours: the same in process and over HTTP."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from envrl.engine.base import Generation, GenerationStop, Sampling


def sampling_parameters(sampling: Sampling, *, max_tokens: int, ends: Collection[int]) -> dict[str, Any]:
    """By the names of vLLM's SamplingParams; any of `ends` ends a completion."""
    return {
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "stop_token_ids": sorted(ends),
        "ignore_eos": True,  # the model's own are among the ends, which its config cannot change
        "logprobs": 0 if sampling.temperature else None,  # of the sampled token alone
        "detokenize": False,
    }


def generation_of(
    ids: list[int], logprobs: list[float] | None, finish_reason: str, *, eos: Collection[int], version: int
) -> Generation:
    """What vLLM has sampled. Without log-probs it was greedy, and certain of each token."""
    stop = GenerationStop.LENGTH
    if finish_reason == "stop":
        stop = GenerationStop.EOS if ids[-1] in eos else GenerationStop.STOP
    return Generation(ids, logprobs or [0.0] * len(ids), stop, version)
