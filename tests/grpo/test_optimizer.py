from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import get_scheduler

from envrl.grpo.optimizer import adamw, lr_factor


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
