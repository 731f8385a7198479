"""A checkpoint of a run is a model that vLLM loads by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import lake  # type: ignore[import-not-found]
from tiny import PROMPT  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM

from envrl import compose, run


@pytest.mark.parametrize("adapters", [False, True])
def test_vllm_samples_from_a_checkpoint(elsewhere: Path, adapters: bool) -> None:
    from vllm import LLM, SamplingParams

    settings = ["stages=[warm_start,train]", "check.require_signal=false", "output_dir=run", "grpo.steps=1"]
    spec = compose(lake(*settings, *(["model.lora.rank=4"] if adapters else [])))
    run(spec)
    folder = "run/checkpoints/step-1"
    engine: dict[str, Any] = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 26, "block_size": 32}
    llm = LLM(folder, dtype="float32", max_model_len=256, **engine)
    sampling = SamplingParams(temperature=0, max_tokens=20, logprobs=0)
    (answer,) = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
    completion = answer.outputs[0]
    ids = [*PROMPT, *completion.token_ids]
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits_TV = model(torch.tensor([ids])).logits[0, len(PROMPT) - 1 : -1]
    ours = torch.log_softmax(logits_TV, -1).gather(1, torch.tensor(ids[len(PROMPT) :])[:, None])[:, 0]
    pairs = zip(completion.logprobs, completion.token_ids, strict=True)
    theirs = [found[token].logprob for found, token in pairs]
    torch.testing.assert_close(torch.tensor(theirs), ours, atol=1e-4, rtol=0)
