"""The update of a step: prompts shared against each row by itself, and memory with a large vocabulary.

The rows are FrozenLake by a solver that errs half the time, 16 groups of 8 as in the quickstart: a prompt of
32 tokens, as the tiny tokenizer has most rules in few, and up to ten turns. Longer prompts and a larger model
stand for what others train. Both ways update copies of one model in turns, with one thread; medians of the
rounds are shown. Memory is measured first, each way in a process of its own.
"""

from __future__ import annotations

import asyncio
import copy
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

ROUNDS = 5
GROUPS = 16
CASES = {  # tokens put before every prompt, the model's shape, groups
    "quickstart": (0, {}, GROUPS),
    "prompt of 232 tokens": (200, {}, GROUPS),
    "prompt of 832 tokens": (800, {}, GROUPS // 2),
    "prompt of 232 tokens, width 512": (200, {"hidden_size": 512, "intermediate_size": 1536}, GROUPS // 4),
}
VOCABULARY, SAMPLED = 151_936, 2048
MIB = 1 << 20


def main() -> None:
    """Both parts."""
    from envrl.summary import machine

    memory()  # first, as a process begins with its parent's peak
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # runs write where they are started
        rows, model, spec = asyncio.run(played())
    for case, (more, shape, groups) in CASES.items():
        given = longer(rows[:groups], more, vocabulary=model.config.vocab_size)
        against(case, given, widened(model, shape), spec)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))


async def played() -> tuple[list[list[Any]], Any, Any]:
    """Rows by group, the quickstart's model, and its settings."""
    from envrl import compose
    from envrl.env.policies import noisy
    from envrl.grpo.credit import credit, token_rows
    from envrl.rollout.policy import scripted
    from envrl.rollout.tasks import Tasks
    from envrl.stage.base import Run
    from envrl.summary import Summary

    spec = compose([f"output_dir={Path.cwd() / 'run'}"])
    run = Run(spec, Summary(spec.digest))
    agent, runner = await run.agent(), await run.scripted_runner()
    tasks = Tasks(spec.env, seed=1, stage="bench", members=spec.grpo.num_generations)
    engine_of = scripted(noisy(0.5), max_context=agent.engine.max_context)
    groups = await runner.run(tasks.groups(0, GROUPS), engine_of, run.sampling(1.0), name="bench")
    advantages = credit(groups, spec, gather=run.gather)
    rows = [token_rows([group], [own]) for group, own in zip(groups, advantages, strict=True)]
    await run.close()
    return rows, agent.model, spec


def longer(groups: list[list[Any]], more: int, *, vocabulary: int) -> list[Any]:
    """All rows, with as many random tokens before each group's prompt."""
    from envrl.rollout.transcript import TokenRow

    rows, rng = [], Random(0)
    for group in groups:
        before = [rng.randrange(vocabulary) for _ in range(more)]
        nothing = [0] * more
        rows += [
            TokenRow(before + r.ids_T, nothing + r.mask_T, nothing + r.logprobs_T, nothing + r.advantages_T)
            for r in group
        ]
    return rows


def widened(model: Any, shape: dict[str, int]) -> Any:
    """A model of the same kind with other sizes."""
    config = copy.deepcopy(model.config)
    config.update({"max_position_embeddings": 2048} | shape)
    return type(model)._from_config(config, attn_implementation="sdpa")


def against(case: str, rows: list[Any], model: Any, spec: Any) -> None:
    """Seconds per update either way, tokens that are computed, and what a pass keeps for backward."""
    from accelerate import Accelerator

    from envrl.grpo.trainer import Trainer

    trainers = {}
    for share in (False, True):
        grpo = spec.grpo.model_copy(update={"share_prompts": share, "learning_rate": 1e-9})
        accelerator = Accelerator(cpu=True)
        trainers[share] = Trainer(
            grpo, copy.deepcopy(model), accelerator=accelerator, pad_id=0, max_tokens=512
        )
    took: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(ROUNDS + 1):
        for share, trainer in trainers.items():
            started = time.perf_counter()
            trainer.update(rows)
            if turn:  # the first warms up
                took[share].append(time.perf_counter() - started)
    print(f"{case}: {len(rows)} rows, medians of {ROUNDS} updates each")
    for share, name in ((False, "each row by itself"), (True, "prompts shared")):
        tokens, kept = work(trainers[share], rows)
        print(f"  {name:20}{median(took[share]):8.2f} s {tokens:9,} tokens {kept:7.0f} MiB kept for backward")
    pairs = zip(took[False], took[True], strict=True)
    print(f"  {median(plain / shared for plain, shared in pairs):.2f} times as fast")


def work(trainer: Any, rows: list[Any]) -> tuple[int, float]:
    """Tokens in all passes, and MiB that the greediest keeps."""
    import torch

    from envrl.grpo.batches import micro_batches, token_logprobs
    from envrl.grpo.prefixes import sharing

    share, most = trainer.spec.share_prompts, trainer.spec.micro_batch_tokens
    run = [row for row in rows if any(row.advantages_T)]
    batches = micro_batches(run, max_tokens=most, pad_id=0, share=share)
    tokens, peak = 0, 0
    for batch in batches:
        tokens += batch.ids_BT.numel() if batch.prefixes is None else len(batch.prefixes.ids_P)
        kept: dict[int, int] = {}

        def keep(x: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), sharing(trainer.model):
            held = token_logprobs(trainer.model, batch)
        peak = max(peak, sum(kept.values()))
        del held
    return tokens, peak / MIB


def memory() -> None:
    """Peak memory of log-probs and entropies, forward and backward, over a vocabulary of Qwen's size."""
    print(f"{SAMPLED} sampled tokens, a vocabulary of {VOCABULARY:,}: peak memory of forward and backward")
    whole = SAMPLED * VOCABULARY * 4 / MIB
    print(f"  {'the logits alone':20}{whole:8.0f} MiB")
    for name, way in {"all logits at once": at_once, "in chunks": in_chunks}.items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            peak, took, value = process.submit(scored, way).result()
        print(f"  {name:20}{peak:8.0f} MiB {took:6.1f} s, sum of log-probs {value:.1f}")


def scored(way: Callable[[Any, Any], Any]) -> tuple[float, float, float]:
    """MiB above what the process held with its model and gradients, seconds, and the sum, as a check."""
    import resource

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids_BT = torch.randint(VOCABULARY, (4, SAMPLED // 4 + 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    logprobs, _ = way(model, ids_BT)
    logprobs.sum().backward()
    took = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak - before) / 1024, took, logprobs.detach().sum().item()


def at_once(model: Any, ids_BT: Any) -> Any:
    """As it is written down: all logits, their log-softmax, the sampled ones of them, the entropy."""
    logits_BTV = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
    logprobs_BTV = logits_BTV.float().log_softmax(-1)
    fixed_BTV = logprobs_BTV.detach()
    return logprobs_BTV.gather(-1, ids_BT[:, 1:, None]), -(fixed_BTV.exp() * fixed_BTV).sum(-1)


def in_chunks(model: Any, ids_BT: Any) -> Any:
    """As the trainer does."""
    from envrl.grpo.batches import micro_batches, token_logprobs
    from envrl.rollout.transcript import TokenRow

    width = ids_BT.shape[1]
    mask_T, nothing = [0] + [1] * (width - 1), [0.0] * width
    rows = [TokenRow(ids_T.tolist(), mask_T, nothing, nothing) for ids_T in ids_BT]
    (batch,) = micro_batches(rows, max_tokens=ids_BT.numel(), pad_id=0)
    return token_logprobs(model, batch)


if __name__ == "__main__":
    main()
