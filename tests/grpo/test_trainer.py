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
from envrl.grpo.loss import VARIANTS
from envrl.grpo.trainer import Trainer
from envrl.rollout.transcript import TokenRow
from envrl.spec import GrpoSpec

LOSSES = list(VARIANTS)
Row = Callable[..., TokenRow]


def trainer_of(model: Any, spec: GrpoSpec, **changes: Any) -> Trainer:
    changed = spec.model_copy(update=changes)
    return Trainer(
        changed,
        copy.deepcopy(model),
        accelerator=Accelerator(cpu=True),
        pad_id=0,
        max_tokens=32,
        reference=copy.deepcopy(model) if changed.kl_coef else None,
    )


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


@pytest.mark.parametrize("loss", LOSSES)
def test_the_cut_of_micro_batches_does_not_matter(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], loss: Any
) -> None:
    one, many = (trainer_of(model, spec, loss=loss, micro_batch_tokens=n) for n in (9999, 1))
    together, apart = one.update(rows), many.update(rows)
    assert together == pytest.approx(apart, rel=1e-4, abs=1e-6)
    # Adam's first step is learning_rate times nearly the gradient's sign: a wrong one would be off by 2e-2.
    torch.testing.assert_close(weights(one), weights(many), atol=5e-4, rtol=0)
    assert not torch.equal(weights(one), weights(trainer_of(model, spec)))


@pytest.mark.parametrize("loss", LOSSES)
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


@pytest.mark.parametrize("loss", LOSSES)
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
    assert metrics["mismatch/touched_fraction"] == metrics["clip_ratio/region"] == 0
    assert metrics["tokens"] == sum(sum(row.mask_T) for row in rows)
    assert 0 < metrics["entropy"] < math.log(64)
    assert all(type(value) is float for value in metrics.values())


def test_the_importance_weight_enters_the_loss(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    agreeing = sampled(model, rows)
    eager = [
        replace(r, logprobs_T=[x - 9 * m for x, m in zip(r.logprobs_T, r.mask_T, strict=True)])
        for r in agreeing
    ]
    plain = trainer_of(model, spec, mismatch=None).update(eager)
    capped = trainer_of(model, spec).update(eager)
    assert capped["mismatch/touched_fraction"] == 1
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


def test_a_reference_comes_with_its_coefficient(model: Any, spec: GrpoSpec) -> None:
    given: dict[str, Any] = {"accelerator": Accelerator(cpu=True), "pad_id": 0, "max_tokens": 32}
    with pytest.raises(ValueError, match=r"got none with kl_coef=0\.1"):
        Trainer(spec.model_copy(update={"kl_coef": 0.1}), model, **given)
    with pytest.raises(ValueError, match=r"got one with kl_coef=0\)"):
        Trainer(spec, model, reference=model, **given)


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


def test_the_first_update_starts_where_the_policy_is(
    model: Any, spec: GrpoSpec, rows: list[TokenRow]
) -> None:
    """Its ratios are exactly 1, so nothing is clipped and the KL to the start is 0."""
    metrics = trainer_of(model, spec, kl_coef=0.1).update(rows)
    assert (metrics["clip_ratio/region"], metrics["kl_reference"], metrics["updates"]) == (0, 0, 1)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("several", [{"passes": 3}, {"mini_batches": 4}, {"passes": 2, "mini_batches": 2}])
def test_several_updates_leave_the_old_policy_behind(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], loss: Any, several: dict[str, int]
) -> None:
    clips = {"clip_low": 1e-3, "clip_high": 1e-3}
    metrics = trainer_of(model, spec, loss=loss, **clips, **several).update(sampled(model, rows))
    assert metrics["updates"] == math.prod(several.values())
    assert 0 < metrics["clip_ratio/region"] < 1
    assert metrics["kl_engine"] == pytest.approx(0, abs=1e-9)  # of the old policy, which sampled


def test_passes_hold_on_to_the_first_log_probs(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    """With a narrow clip the second pass finds nothing left to learn; as a batch of its own it would."""
    narrow = {"clip_low": 1e-6, "clip_high": 1e-6, "mismatch": None}
    good = [replace(row, advantages_T=[1.0 * m for m in row.mask_T]) for row in rows[:1]]
    once, twice = trainer_of(model, spec, **narrow), trainer_of(model, spec, passes=2, **narrow)
    alone, metrics = once.update(good), twice.update(good)
    assert metrics["grad_norm"] == pytest.approx(alone["grad_norm"] / 2, rel=0.05)
    assert once.update(good)["grad_norm"] > alone["grad_norm"] / 4


@pytest.mark.parametrize("loss", LOSSES)
def test_mini_batches_are_updates_of_their_own(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], loss: Any
) -> None:
    """Where no ratio is clipped or capped, they differ from separate batches by the ratio alone."""
    wide = {"loss": loss, "clip_low": 0.9, "clip_high": 9.0, "mismatch": None, "learning_rate": 1e-4}
    split, apart = trainer_of(model, spec, mini_batches=2, **wide), trainer_of(model, spec, **wide)
    metrics = split.update(rows)
    first, second = apart.update(rows[::2]), apart.update(rows[1::2])
    assert metrics["grad_norm"] == pytest.approx((first["grad_norm"] + second["grad_norm"]) / 2, rel=0.05)
    torch.testing.assert_close(weights(split), weights(apart), atol=1e-4, rtol=0)
    assert (metrics["rows"], metrics["updates"], split.step, apart.step) == (8, 2, 1, 2)


def test_a_mini_batch_with_nothing_to_learn_is_no_update(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], random_row: Row
) -> None:
    flat = random_row(Random(0), advantage=0.0)
    metrics = trainer_of(model, spec, mini_batches=3).update([rows[0], flat, rows[1]])
    assert (metrics["updates"], metrics["skipped_rows"], metrics["rows"]) == (2, 1, 3)


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "bnpo"])
def test_flat_groups_count_in_the_denominator_or_are_dropped(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], random_row: Row, loss: Any
) -> None:
    flat = [replace(random_row(Random(i), advantage=0.0), flat=True) for i in range(4)]
    alone = trainer_of(model, spec, loss=loss).update(rows)
    dropping = trainer_of(model, spec, loss=loss, flat_groups="drop").update(rows + flat)
    counting = trainer_of(model, spec, loss=loss, flat_groups="count").update(rows + flat)
    assert dropping["loss"] == pytest.approx(alone["loss"])
    assert abs(counting["loss"]) < abs(alone["loss"])
    assert (dropping["rows"], dropping["skipped_rows"]) == (12, 4)


def test_the_entropy_bonus_keeps_the_policy_open(model: Any, spec: GrpoSpec, rows: list[TokenRow]) -> None:
    def entropy(coef: float) -> float:
        trainer = trainer_of(model, spec, entropy_coef=coef)
        for _ in range(6):
            metrics = trainer.update(sampled(trainer.model, rows))
        return metrics["entropy"]

    assert entropy(1.0) > entropy(0.0) + 0.2


def test_the_log_says_how_many_tokens_the_correction_touches(
    model: Any, spec: GrpoSpec, rows: list[TokenRow]
) -> None:
    agreeing = sampled(model, rows)
    unlikely = [x - 9 * m for x, m in zip(agreeing[0].logprobs_T, agreeing[0].mask_T, strict=True)]
    one_off = [replace(agreeing[0], logprobs_T=unlikely), *agreeing[1:]]
    for passes in (1, 2):
        metrics = trainer_of(model, spec, passes=passes).update(one_off)
        assert metrics["mismatch/touched_tokens"] == sum(rows[0].mask_T)
        assert metrics["mismatch/touched_fraction"] == pytest.approx(sum(rows[0].mask_T) / metrics["tokens"])


def test_rows_that_did_badly_under_another_policy_are_masked(
    model: Any, spec: GrpoSpec, random_row: Row
) -> None:
    """DeepSeek-V3.2's off-policy mask: the same drift does a good row no harm."""
    rows = sampled(model, [random_row(Random(1), advantage=1.0), random_row(Random(2), advantage=-1.0)])
    drifted = [
        replace(row, logprobs_T=[x + 0.5 * m for x, m in zip(row.logprobs_T, row.mask_T, strict=True)])
        for row in rows
    ]
    metrics = trainer_of(model, spec, off_policy_mask=0.1).update(drifted)
    assert metrics["off_policy/masked_fraction"] == pytest.approx(sum(rows[1].mask_T) / metrics["tokens"])
    assert trainer_of(model, spec, off_policy_mask=0.1).update(rows)["off_policy/masked_fraction"] == 0
