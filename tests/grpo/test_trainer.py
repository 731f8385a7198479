from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from envrl.errors import StageError
from envrl.grpo.batches import micro_batches, token_logprobs
from envrl.grpo.trainer import Trainer
from envrl.rollout.transcript import TokenRow
from envrl.spec import GrpoSpec

NORMALISATIONS = ["dapo", "grpo", "bnpo", "dr_grpo"]
Row = Callable[..., TokenRow]


def trainer_of(model: Any, spec: GrpoSpec, **changes: Any) -> Trainer:
    changed = spec.model_copy(update=changes)
    return Trainer(changed, copy.deepcopy(model), accelerator=Accelerator(cpu=True), pad_id=0, max_tokens=32)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def sampled(model: Any, rows: list[TokenRow]) -> list[TokenRow]:
    """The rows with the model's own log-probs for the engine's."""
    done = []
    for row in rows:
        (batch,) = micro_batches([row], max_tokens=999, pad_id=0)
        with torch.no_grad():
            done.append(replace(row, logprobs_T=token_logprobs(model, batch)[0][0].tolist()))
    return done


@pytest.mark.parametrize("loss", NORMALISATIONS)
def test_the_cut_of_micro_batches_does_not_matter(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], loss: Any
) -> None:
    one, many = (trainer_of(model, spec, loss=loss, micro_batch_tokens=n) for n in (9999, 1))
    together, apart = one.update(rows), many.update(rows)
    assert together == pytest.approx(apart, rel=1e-4, abs=1e-6)
    # Adam's first step is learning_rate times nearly the gradient's sign: a wrong one would be off by 2e-2.
    torch.testing.assert_close(weights(one), weights(many), atol=5e-4, rtol=0)
    assert not torch.equal(weights(one), weights(trainer_of(model, spec)))


@pytest.mark.parametrize("loss", NORMALISATIONS)
def test_flat_rows_count_but_need_no_forward(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], random_row: Row, loss: Any
) -> None:
    flat = [random_row(Random(i), advantage=0.0) for i in range(4)]
    faint = [replace(row, advantages_T=[1e-30 * m for m in row.mask_T]) for row in flat]
    skipping, running = trainer_of(model, spec, loss=loss), trainer_of(model, spec, loss=loss)
    skipped, run = skipping.update(rows + flat), running.update(rows + faint)
    assert (skipped["skipped_rows"], run["skipped_rows"]) == (4, 0)
    assert skipped["rows"] == run["rows"] == 12
    assert skipped["loss"] == pytest.approx(run["loss"], rel=1e-5)
    assert skipped["grad_norm"] == pytest.approx(run["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("loss", NORMALISATIONS)
def test_masked_truncated_rows_leave_the_loss_unchanged(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], random_row: Row, loss: Any
) -> None:
    truncated = [random_row(Random(i), truncated=True) for i in range(3)]
    masking = {"loss": loss, "mask_truncated": True}
    without = trainer_of(model, spec, **masking).update(rows)
    with_them = trainer_of(model, spec, **masking).update(rows + truncated)
    for name in ("loss", "grad_norm", "entropy"):
        assert with_them[name] == pytest.approx(without[name])
    unmasked = trainer_of(model, spec, loss=loss).update(rows + truncated)
    assert unmasked["loss"] != pytest.approx(without["loss"])


def test_nothing_to_learn_moves_only_the_schedule(model: Any, spec: GrpoSpec, random_row: Row) -> None:
    trainer = trainer_of(model, spec, lr_schedule="cosine", mask_truncated=True, weight_decay=0.1)
    before = weights(trainer)
    truncated, flat = random_row(Random(0), truncated=True), random_row(Random(1), advantage=0.0)
    first, second, third = (trainer.update(rows) for rows in ([truncated], [flat], []))
    assert torch.equal(weights(trainer), before)
    assert (first["loss"], first["grad_norm"], second["loss"], third["rows"]) == (0, 0, 0, 0)
    assert first["learning_rate"] > second["learning_rate"] > third["learning_rate"]
    assert "entropy" not in first


def test_metrics_of_an_engine_that_agrees(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    metrics = trainer_of(model, spec).update(sampled(model, rows))
    assert metrics["kl_engine"] == pytest.approx(0, abs=1e-9)
    assert metrics["mismatch/weight"] == pytest.approx(1, abs=1e-5)
    assert metrics["mismatch/capped_fraction"] == metrics["clip_ratio/region"] == 0
    assert metrics["tokens"] == sum(sum(row.mask_T) for row in rows)
    assert 0 < metrics["entropy"] < math.log(64)
    assert all(type(value) is float for value in metrics.values())


def test_the_importance_weight_enters_the_loss(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    agreeing = sampled(model, rows)
    eager = [
        replace(r, logprobs_T=[x - 9 * m for x, m in zip(r.logprobs_T, r.mask_T, strict=True)])
        for r in agreeing
    ]
    plain = trainer_of(model, spec, mismatch_cap=None).update(eager)
    capped = trainer_of(model, spec, mismatch_cap=2.0).update(eager)
    assert capped["mismatch/capped_fraction"] == 1
    assert capped["loss"] == pytest.approx(2 * plain["loss"], rel=1e-5)
    assert "mismatch/weight" not in plain


def test_updates_raise_the_probability_of_what_paid(model: Any, spec: GrpoSpec, random_row: Row) -> None:
    good, bad = random_row(Random(1), advantage=1.0), random_row(Random(2), advantage=-1.0)
    trainer = trainer_of(model, spec)

    def score(row: TokenRow) -> float:
        return sum(sampled(trainer.model, [row])[0].logprobs_T)

    before = score(good) - score(bad)
    for _ in range(3):
        trainer.update(sampled(trainer.model, [good, bad]))
    assert score(good) - score(bad) > before + 1


def test_a_reference_holds_the_policy_back(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    def distance(kl_coef: float) -> float:
        trainer = trainer_of(model, spec, kl_coef=kl_coef)
        for _ in range(8):
            metrics = trainer.update(sampled(trainer.model, rows))
        return metrics["kl_reference"]

    assert 0 < distance(5.0) < distance(1e-6) / 2


def test_a_resumed_trainer_goes_on_as_if_unbroken(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    unbroken = trainer_of(model, spec, lr_schedule="cosine", warmup_steps=2)
    halves = [unbroken.update(rows[i : i + 4]) for i in (0, 4)]
    state = copy.deepcopy(unbroken.state())
    resumed = trainer_of(unbroken.model, spec, lr_schedule="cosine", warmup_steps=2)
    resumed.load_state(state)
    assert unbroken.update(rows) == resumed.update(rows)
    assert torch.equal(weights(unbroken), weights(resumed))
    assert [half["learning_rate"] for half in halves] == [0.0, 0.005]


def test_the_same_rows_give_the_same_weights(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    first, second = trainer_of(model, spec), trainer_of(model, spec)
    assert [first.update(rows) for _ in range(2)] == [second.update(rows) for _ in range(2)]
    assert torch.equal(weights(first), weights(second))


def test_the_models_mode_is_left_as_it_was(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    trainer = trainer_of(model, spec)
    trainer.update(rows)
    assert not trainer.model.training


def test_activation_checkpointing_gives_the_same_step(
    model: Any, spec: GrpoSpec, rows: list[TokenRow]
) -> None:
    plain, saving = trainer_of(model, spec), trainer_of(model, spec)
    newer = getattr(saving.model, "activation_checkpointing_enable", None)
    (newer or saving.model.gradient_checkpointing_enable)({"use_reentrant": False})
    assert plain.update(rows) == pytest.approx(saving.update(rows), rel=1e-5)


def test_a_gradient_that_is_no_number_stops_the_run(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    trainer = trainer_of(model, spec)
    before = weights(trainer)
    broken = [replace(rows[0], advantages_T=[math.nan * m for m in rows[0].mask_T])]
    with pytest.raises(StageError, match=r"step 0: gradient norm is nan.*grpo\.learning_rate"):
        trainer.update(broken)
    assert torch.equal(weights(trainer), before)
