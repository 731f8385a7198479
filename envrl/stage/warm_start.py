"""Supervised warm start: the model learns the assistant's tokens of games that a solver plays."""

from __future__ import annotations

from collections.abc import AsyncIterator

from envrl.env.policies import noisy
from envrl.errors import StageError
from envrl.grpo import checkpoints
from envrl.grpo.batches import micro_batches, token_logprobs
from envrl.grpo.loss import supervised_loss
from envrl.grpo.optimizer import adamw, lr_factor, set_learning_rate
from envrl.rollout.policy import scripted
from envrl.rollout.tasks import Tasks
from envrl.rollout.trajectory import Episode, TokenRow
from envrl.spec import WarmStartSpec
from envrl.stage.check import learning_signal
from envrl.stage.run import Policy, Run


async def run(run: Run) -> None:
    """Fine-tunes the policy on solver games, then measures whether GRPO has a signal to learn from."""
    spec = run.spec.model.warm_start
    if spec is None:
        return
    policy = await run.policy()
    await fine_tune(run, spec)
    await policy.sync(version=policy.engine.weights_version + 1)
    checkpoints.save_weights(run.checkpoints / "warm_start", model=policy.model, tokenizer=policy.tokenizer)
    await learning_signal(run)


async def fine_tune(run: Run, spec: WarmStartSpec) -> None:
    """AdamW with a cosine schedule on fresh games in every step. Every rank does the same."""
    policy = await run.policy()
    optimizer = adamw(policy.model, learning_rate=spec.learning_rate, weight_decay=spec.weight_decay)
    prepared = run.accelerator.prepare_optimizer(optimizer)
    games = solver_games(run, spec)
    with run.progress.stage("warm_start", total=spec.steps, unit="steps") as bar:
        for step in range(spec.steps):
            factor = lr_factor(step, schedule="cosine", warmup_steps=spec.warmup_steps, steps=spec.steps)
            set_learning_rate(optimizer, spec.learning_rate * factor)
            rows = [await anext(games) for _ in range(spec.batch_size)]
            loss = _accumulate(run, policy, rows)
            run.accelerator.clip_grad_norm_(policy.model.parameters(), run.spec.grpo.max_grad_norm)
            prepared.step()
            prepared.zero_grad()
            bar.advance(1, loss=loss)


def _accumulate(run: Run, policy: Policy, rows: list[TokenRow]) -> float:
    """Gradients of the mean negative log-likelihood over the rows' assistant tokens; returns that mean."""
    policy.model.train()
    tokens = sum(sum(row.mask_T) for row in rows)
    total = 0.0
    for batch in micro_batches(
        rows, max_tokens=run.spec.grpo.micro_batch_tokens, pad_id=policy.tokenizer.pad_token_id or 0
    ):
        batch = batch.to(run.accelerator.device)
        with run.accelerator.autocast():
            logprobs_BT, _ = token_logprobs(policy.model, batch)
            loss = supervised_loss(logprobs_BT, batch.mask_BT, normalizer=tokens)
        run.accelerator.backward(loss)
        total += loss.item()
    policy.model.train(False)
    return total


async def solver_games(run: Run, spec: WarmStartSpec) -> AsyncIterator[TokenRow]:
    """Endless games of the noisy solver, rendered by the scheduler that will render the rollouts."""
    policy, runner = await run.policy(), await run.runner()
    tasks = Tasks(run.spec.env, seed=run.spec.seed, stage="warm_start", members=1)
    sampling = run.sampling(temperature=1.0)
    engine_of = scripted(noisy(spec.noise), max_context=policy.engine.max_context)
    start = 0
    while True:
        groups = tasks.groups(start, start + spec.batch_size)
        played = await runner.run(groups, engine_of, sampling, name="warm_start")
        episodes = [episode for group in played for episode in group]
        kept = [episode for episode in episodes if not spec.require_success or solved(episode)]
        for episode in kept:
            for row in episode.rows(advantage=1.0):
                yield row
        start += spec.batch_size
        if not kept and start >= 20 * spec.batch_size:
            raise StageError(
                f"none of {start} solver games was solved; lower model.warm_start.noise={spec.noise:g} "
                "or give model.warm_start.require_success=false"
            )


def solved(episode: Episode) -> bool:
    """Whether the environment calls the task solved."""
    return bool(episode.host.environment.success)
