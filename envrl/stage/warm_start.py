"""Supervised warm start: the model learns the assistant's tokens of games that a solver plays."""

from __future__ import annotations

from collections.abc import AsyncIterator

from envrl.env import environment_class
from envrl.env.base import has_solver
from envrl.env.policies import gold, noisy
from envrl.errors import StageError
from envrl.grpo import checkpoints
from envrl.grpo.batches import micro_batches, token_logprobs
from envrl.grpo.loss import supervised_loss
from envrl.grpo.optimizer import adamw, lr_factor, set_learning_rate
from envrl.rollout.policy import scripted
from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode
from envrl.rollout.transcript import TokenRow
from envrl.spec import WarmStartSpec
from envrl.stage.base import Agent, Run
from envrl.stage.check import learning_signal
from envrl.stop import StopReason

HOPELESS = 256
"""Games without a solved one after which the warm start gives up."""


async def run(run: Run) -> None:
    """Fine-tunes the model on solver games, then measures whether GRPO has a signal to learn from.

    A model that was warmed up before the run was cut short, or that comes from resume=<path>, is not
    warmed up again.
    """
    spec = run.spec.model.warm_start
    if spec is None or run.training_checkpoint():
        return
    agent = await run.agent()
    if not run.warm_start_folder.exists():
        async with agent.updating(version=1):
            await fine_tune(run, spec)
            run.synchronize(agent.model)
        if run.accelerator.is_main_process:
            checkpoints.save_weights(run.warm_start_folder, model=agent.model, tokenizer=agent.tokenizer)
        run.accelerator.wait_for_everyone()
    await learning_signal(run)


async def fine_tune(run: Run, spec: WarmStartSpec) -> None:
    """AdamW with a cosine schedule on fresh games in every step. Every rank does the same."""
    agent = await run.agent()
    optimizer = adamw(
        agent.model,
        learning_rate=spec.learning_rate,
        weight_decay=spec.weight_decay,
        kind=run.spec.grpo.optimizer,
    )
    prepared = run.accelerator.prepare_optimizer(optimizer)
    games = solver_games(run, spec)
    with run.progress.stage("warm_start", total=spec.steps, unit="steps") as bar:
        for step in range(spec.steps):
            factor = lr_factor(step, schedule="cosine", warmup_steps=spec.warmup_steps, steps=spec.steps)
            set_learning_rate(optimizer, spec.learning_rate * factor)
            rows = [await anext(games) for _ in range(spec.batch_size)]
            loss = _accumulate(run, agent, rows)
            run.accelerator.clip_grad_norm_(agent.model.parameters(), run.spec.grpo.max_grad_norm)
            prepared.step()
            prepared.zero_grad()
            bar.advance(1, loss=loss)
    run.accelerator.free_memory()  # GRPO's optimizer is another one


def _accumulate(run: Run, agent: Agent, rows: list[TokenRow]) -> float:
    """Gradients of the mean negative log-likelihood over the rows' assistant tokens; returns that mean."""
    agent.model.train()
    tokens = sum(sum(row.mask_T) for row in rows)
    total = 0.0
    for batch in micro_batches(
        rows, max_tokens=run.spec.grpo.micro_batch_tokens, pad_id=agent.tokenizer.pad_token_id or 0
    ):
        batch = batch.to(run.accelerator.device)
        with run.accelerator.autocast():
            logprobs_BT, _ = token_logprobs(agent.model, batch)
            loss = supervised_loss(logprobs_BT, batch.mask_BT, normalizer=tokens)
        run.accelerator.backward(loss)
        total += loss.item()
    agent.model.train(False)
    return total


async def solver_games(run: Run, spec: WarmStartSpec) -> AsyncIterator[TokenRow]:
    """Endless games of the noisy solver, rendered by the scheduler that will render the rollouts.

    Environments without a solver have no part in them.
    """
    agent, runner = await run.agent(), await run.scripted_runner()
    envs = run.spec.env
    solvable = [key for key, env in envs.items() if has_solver(environment_class(env.kind, env.target))]
    tasks = Tasks(envs, seed=run.spec.seed, stage="warm_start", members=1, only=solvable)
    sampling = run.sampling(temperature=1.0)
    engine_of = scripted(noisy(spec.noise), max_context=agent.engine.max_context, teacher=gold)
    start = found = 0
    while True:
        groups = tasks.groups(start, start + spec.batch_size)
        played = await runner.run(groups, engine_of, sampling, name="warm_start", scored=False)
        episodes = [episode for group in played for episode in group]
        kept = [episode for episode in episodes if _teaches(episode, spec)]
        for episode in kept:
            for row in episode.rows(advantage=1.0):
                yield row
        start += spec.batch_size
        found += len(kept)
        if not found and start >= HOPELESS:
            raise StageError(
                f"none of {start} solver games was solved; lower model.warm_start.noise={spec.noise:g} "
                "or give model.warm_start.require_success=false"
            )


def _teaches(episode: Episode, spec: WarmStartSpec) -> bool:
    """Whether a game is learned from: the world did not break it, and it was solved where that is asked."""
    return episode.stop is not StopReason.ERROR and (not spec.require_success or bool(episode.success))
