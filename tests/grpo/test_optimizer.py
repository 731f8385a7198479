from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import get_scheduler

from envrl import compose
from envrl.errors import ConfigError
from envrl.grpo import settings
from envrl.grpo.optimizer import adamw, lr_factor
from envrl.grpo.trainer import Trainer
from envrl.rollout.transcript import TokenRow
from envrl.spec import GrpoSpec


@pytest.mark.parametrize("warmup_steps", [0, 3])
@pytest.mark.parametrize(("schedule", "theirs"), [("constant", "constant_with_warmup"), ("cosine", "cosine")])
def test_schedules_equal_those_of_transformers(schedule: Any, theirs: str, warmup_steps: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(theirs, optimizer, num_warmup_steps=warmup_steps, num_training_steps=12)
    for step in range(12):
        ours = lr_factor(step, schedule=schedule, warmup_steps=warmup_steps, steps=12)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()


def test_matrices_decay_and_vectors_do_not(model: Any) -> None:
    decayed, exempt = adamw(model, learning_rate=1.0, weight_decay=0.1).param_groups
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in exempt["params"]} == {1}
    assert len(decayed["params"]) + len(exempt["params"]) == len(list(model.parameters()))


def test_eight_bits_need_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"adamw_8bit: bitsandbytes is not .*; mend: pip install .*=adamw$"):
        compose(["grpo.optimizer=adamw_8bit"])


@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit"])
def test_an_optimizer_goes_on_from_its_saved_state(
    model: Any, spec: GrpoSpec, rows: list[TokenRow], tmp_path: Path, kind: Any
) -> None:
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    model.resize_token_embeddings(256)  # above the size that bitsandbytes leaves in 32 bits
    changed = spec.model_copy(update={"optimizer": kind, "weight_decay": 0.1})

    def trainer(model: Any) -> Trainer:
        return Trainer(changed, model, accelerator=Accelerator(cpu=True), pad_id=0, max_tokens=32)

    whole = trainer(copy.deepcopy(model))
    for _ in range(2):
        whole.update(rows)
    torch.save(whole.state(), tmp_path / "state.pt")
    again = trainer(copy.deepcopy(whole.model))
    again.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert whole.update(rows) == again.update(rows)
    pairs = list(zip(whole.model.parameters(), again.model.parameters(), strict=True))
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert ("dtype=torch.uint8" in str(again.state()["optimizer"]["state"])) == (kind == "adamw_8bit")
    other = spec.model_copy(update={"optimizer": "adamw_8bit" if kind == "adamw" else "adamw"})
    again.spec = other
    with pytest.raises(ConfigError, match=f"grpo.optimizer: .* of {kind} .*; mend: grpo.optimizer={kind}"):
        again.load_state(whole.state())
