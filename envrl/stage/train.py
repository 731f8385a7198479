"""GRPO: roll out, compare within groups, take optimizer steps, hand the weights to the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel

from envrl.grpo import checkpoints
from envrl.grpo.credit import credit, is_flat_group, penalties, token_rows
from envrl.grpo.trainer import Trainer
from envrl.report.card import card
from envrl.rollout.metrics import engine_metrics, episode_metrics, inflight_metrics
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode
from envrl.spec import GrpoSpec
from envrl.stage.base import Agent, Run
from envrl.stage.evaluate import evaluate
from envrl.stage.reference import reference
from envrl.tracking import read_jsonl


async def run(run: Run) -> None:
    """Trains from the newest checkpoint, or from the first step, to the last."""
    await Training(run, await run.agent(), await run.runner(), await reference(run)).run()


class Training:
    """The loop over steps and what it carries from one to the next."""

    def __init__(self, run: Run, agent: Agent, runner: Runner, reference: PreTrainedModel | None) -> None:
        self._run = run
        self._agent = agent
        self._runner = runner
        self._spec: GrpoSpec = run.spec.grpo
        self._tasks = Tasks(
            run.spec.env, seed=run.spec.seed, stage="train", members=self._spec.num_generations
        )
        self._trainer = Trainer(
            self._spec,
            agent.model,
            accelerator=run.accelerator,
            pad_id=agent.tokenizer.pad_token_id or 0,
            max_tokens=run.spec.scheduler.max_tokens,
            reference=reference,
        )
        self._best: tuple[float, int] | None = None
        """Score (mean success over environments, else reward) and step of the best evaluation so far."""

    async def run(self) -> None:
        """All steps that are left; the totals go to the summary."""
        first = await self._resume()
        run, steps = self._run, self._spec.steps
        with run.progress.stage("train", total=steps, unit="steps", done=first) as bar:
            for step in range(first + 1, steps + 1):
                metrics = await self._step(step)
                bar.advance(
                    1,
                    reward=metrics.get("reward"),
                    success=metrics.get("success"),
                    tokens_per_s=metrics["tokens_per_s"],
                )
                metrics |= await self._evaluate(step)
                run.tracker.log(step, metrics)
                self._checkpoint(step)
        run.accelerator.wait_for_everyone()
        run.summary.train = totals(read_jsonl(run.tracker.metrics))
        if self._best is not None:
            run.summary.train["best_step"] = self._best[1]

    async def _step(self, step: int) -> dict[str, float]:
        """One step, 1-based: groups → advantages → rows → update → engine."""
        started = time.perf_counter()
        before = await self._agent.engine.stats()
        groups = await self._roll_out(step)
        spent = await self._agent.engine.stats() - before
        rolled_out = time.perf_counter()
        advantages = credit(groups, self._run.spec, gather=self._run.gather)
        async with self._agent.updating(_version(step)):
            update = self._trainer.update(token_rows(groups, advantages))
            updated = time.perf_counter()
        ended = time.perf_counter()
        records = self._run.gather([episode.record() for group in groups for episode in group])
        self._run.tracker.record(records, stage="train", step=step)
        metrics = update | episode_metrics(records)
        metrics |= engine_metrics(self._run.gather([spent]), episodes=len(records))
        metrics |= inflight_metrics(self._run.gather([self._runner.inflight]))
        if self._spec.overlong_buffer:
            shortened: list[float] = self._run.gather(penalties(groups, self._run.spec))
            metrics["overlong_penalty"] = fmean(shortened)
        flat = self._run.gather([is_flat_group(advantages_G) for advantages_G in advantages])
        return metrics | {
            "frac_zero_std": fmean(flat),
            "time/step_s": ended - started,
            "time/rollout_s": rolled_out - started,
            "time/update_s": updated - rolled_out,
            "time/push_s": ended - updated,
            "tokens_per_s": metrics["tokens"] / (ended - started),
        }

    async def _roll_out(self, step: int) -> list[list[Episode]]:
        size = self._spec.groups_per_step
        groups = self._tasks.groups((step - 1) * size, step * size, **self._run.share)
        sampling = self._run.sampling(self._spec.temperature)
        return await self._runner.run(groups, self._agent.engine_of, sampling, name=f"train/{step}")

    # --- evaluation and checkpoints ---------------------------------------------------------

    async def _evaluate(self, step: int) -> dict[str, float]:
        every = self._run.spec.evaluate.every
        if not every or step % every:
            return {}
        entries = await evaluate(self._run, "grpo", step=step)
        for entry in entries:
            self._run.summary.add(entry)
        rates = {
            entry["env"]: entry["success_rate"] for entry in entries if entry["success_rate"] is not None
        }
        rewards = [entry["reward_mean"] for entry in entries if entry["reward_mean"] is not None]
        score = fmean(rates.values()) if rates else fmean(rewards or [0.0])
        if self._best is None or score > self._best[0]:
            self._best = (score, step)
        return {f"eval/{env}/success": rate for env, rate in rates.items()} | {"eval/score": score}

    def _checkpoint(self, step: int) -> None:
        spec = self._run.spec.checkpoint
        due = step == self._spec.steps or (spec.every and step % spec.every == 0)
        best = self._best[1] if self._best else None
        if not (due or best == step):
            return
        trainer = self._trainer.state()
        if self._run.accelerator.is_main_process:
            checkpoints.save(
                self._run.checkpoints,
                step,
                model=self._agent.model,
                tokenizer=self._agent.tokenizer,
                state={
                    "trainer": trainer,
                    "best": self._best,
                    "inflight": self._runner.gate.state(),
                },
                keep=spec.keep,
                best=best,
                card=card(self._run.spec, self._run.summary, step=step),
            )

    async def _resume(self) -> int:
        """Takes up the newest checkpoint's optimizer, forgets what was logged after it; returns its step."""
        checkpoint = self._run.training_checkpoint()
        done = 0
        if checkpoint is not None:
            state: dict[str, Any] = checkpoints.load_state(checkpoint)
            self._trainer.load_state(state["trainer"])
            self._best = state["best"]
            self._runner.gate.load_state(state["inflight"])
            done = self._trainer.step
            await self._agent.sync(version=_version(done))
        self._run.tracker.rewind(done)
        self._run.summary.rewind(done)
        return done


def _version(step: int) -> int:
    """Of the weights after a step; 0 and 1 are those before and after a warm start."""
    return step + 1


def totals(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What training took, from the lines of metrics.jsonl: a resumed run counts every step once."""
    summed = {
        "wall_s": "time/step_s",
        "rollout_s": "time/rollout_s",
        "update_s": "time/update_s",
        "tokens": "tokens",
        "episodes": "episodes",
        "errors": "episodes/errors",
    }
    return {"steps": len(lines)} | {
        total: sum(line[name] for line in lines) for total, name in summed.items()
    }
