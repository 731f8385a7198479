"""One side of the comparison with TRL, in its own process: takes a step when told to, and says what it did.

python grpo_side.py SIDE FOLDER STEPS, with SIDE one of `sides`. One line on stdin, the tool's mean latency in
seconds, starts a step; one line of JSON on stdout answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slow_lake import Latency

GROUPS, MEMBERS = 8, 8
TURNS, TOKENS = 10, 512
SEED = 1
LAKE = [
    *["env=custom", "env.custom.target=slow_lake:OurLake", "scheduler.max_turn_tokens=null"],
    *[f"scheduler.max_turns={TURNS}", f"scheduler.max_tokens={TOKENS}", "scheduler.after_done=speak"],
]
LEARNING_RATE = 1e-6
"""Small, so that both sides play with nearly the same weights to the end."""


class Parent:
    """The process that holds the stop-watch."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what the libraries print goes to the log

    def wait(self) -> None:
        """Until the next step is asked for, or none is any more."""
        if line := sys.stdin.readline():
            Latency.mean_s = float(line)

    def answer(self, **figures: float) -> None:
        print(json.dumps(figures), file=self._answers, flush=True)


def ours(parent: Parent, folder: Path, steps: int, *, overrides: Sequence[str] = ()) -> None:
    """envrl's train stage."""
    from envrl import compose
    from envrl.stage import train
    from envrl.stage.base import Run
    from envrl.summary import Summary
    from envrl.tracking import Tracker

    class StepByStep(Tracker):
        def log(self, step: int, metrics: Mapping[str, Any]) -> None:
            super().log(step, metrics)
            parent.answer(
                rollout_s=metrics["time/rollout_s"],
                episodes=metrics["episodes"],
                turns=metrics["turns/mean"],
                calls=metrics["tools/call_frequency"],
                tokens=metrics["tokens"],
                reward=metrics["reward"],
                rows=metrics["rows"] - metrics["skipped_rows"],
            )
            parent.wait()

    spec = compose(
        [
            *[*LAKE, "stages=[train]", "model.warm_start=null", f"model.name_or_path={folder / 'model'}"],
            *[f"grpo.groups_per_step={GROUPS}", f"grpo.num_generations={MEMBERS}", f"grpo.steps={steps}"],
            *[f"grpo.learning_rate={LEARNING_RATE}", "checkpoint.every=null", f"seed={SEED}"],
            *[f"output_dir={folder / 'ours'}", *overrides],
        ]
    )
    run = Run(spec, Summary(spec.digest))
    run.tracker = StepByStep(spec.output_dir)
    parent.wait()
    asyncio.run(train.run(run))


def trl(parent: Parent, folder: Path, steps: int, *, lake: str = "TrlLake", **settings: Any) -> None:
    """TRL's GRPOTrainer with environment_factory, and with transformers generation where nothing is set."""
    import slow_lake
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    torch.set_num_threads(1)
    figures: dict[str, float] = {}

    class Timed(GRPOTrainer):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            played = super()._generate(*args, **kwargs)
            figures["played"] = time.perf_counter()
            return played

    class StepByStep(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            parent.wait()
            figures["started"] = time.perf_counter()

        def on_log(self, *args: Any, logs: dict[str, float], **kwargs: Any) -> None:
            if "completions/mean_length" in logs:  # not in the last line, on the whole training
                parent.answer(
                    rollout_s=figures["played"] - figures["started"],
                    episodes=figures["episodes"],
                    turns=figures["turns"],
                    calls=logs["tools/call_frequency"],
                    tokens=logs["completions/mean_length"] * figures["episodes"],
                    reward=logs["reward"],
                    rows=figures["episodes"],
                )

    def reward(completions: list[list[dict[str, Any]]], environments: list[Any], **_: Any) -> list[float]:
        figures["episodes"] = len(completions)
        turns = sum(message["role"] == "assistant" for messages in completions for message in messages)
        figures["turns"] = turns / len(completions)
        return [environment._game.reward for environment in environments]

    Timed(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        processing_class=_readable(AutoTokenizer.from_pretrained(folder / "model")),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict(_tasks(steps)),
        environment_factory=getattr(slow_lake, lake),
        callbacks=[StepByStep()],
        args=_settings(folder, steps, **settings),
    ).train()


def _readable(tokenizer: Any) -> Any:
    """Our template, told to TRL as it knows Qwen3's: they differ in the two marks around a turn."""
    from trl.chat_template_utils import qwen3_template

    content = {"close_pattern": r"<\|end\|>\s*", "content": "text"}
    fields = {**qwen3_template["fields"], "content": content}
    tokenizer.response_template = {**qwen3_template, "start_anchor": "<|assistant|>", "fields": fields}
    return tokenizer


def _tasks(steps: int) -> dict[str, list[Any]]:
    """The boards that our side plays, in the same order."""
    from envrl.env import Face
    from envrl.env.frozen_lake import FrozenLake
    from envrl.seeds import task_seed

    rules = [{"role": "user", "content": FrozenLake().instructions(Face.TOOL) + "\n\n"}]
    seeds = [task_seed(SEED, "train", group) for group in range(GROUPS * steps)]
    return {"prompt": [rules] * len(seeds), "seed": seeds}


def _settings(folder: Path, steps: int, **settings: Any) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=GROUPS * MEMBERS,
        num_generations=MEMBERS,
        max_steps=steps,
        max_completion_length=TOKENS,
        max_tool_calling_iterations=TURNS,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **settings,
    )


def trl_async(parent: Parent, folder: Path, steps: int) -> None:
    """The same with async tools."""
    trl(parent, folder, steps, lake="AsyncTrlLake")


sides = {"ours": ours, "trl": trl, "trl-async": trl_async}

if __name__ == "__main__":
    sides[sys.argv[1]](Parent(), Path(sys.argv[2]), int(sys.argv[3]))
