"""AdamW, plain or with a state of 8 bits, and the learning rate, for GRPO and the warm start alike."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Literal

from torch import nn
from torch.optim import AdamW, Optimizer


def adamw(
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float,
    kind: Literal["adamw", "adamw_8bit"] = "adamw",
) -> Optimizer:
    """AdamW over the trainable parameters; matrices decay, vectors (norms, biases) do not.

    adamw_8bit is that of bitsandbytes (arXiv:2110.02861): its moments take a quarter of the memory, but for
    tensors of less than 4096 elements.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    if kind == "adamw_8bit":
        optimizer: Optimizer = import_module("bitsandbytes").optim.AdamW8bit(groups, lr=learning_rate)
        return optimizer
    return AdamW(groups, lr=learning_rate)


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """The same rate for every parameter."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def lr_factor(step: int, *, schedule: Literal["constant", "cosine"], warmup_steps: int, steps: int) -> float:
    """What the learning rate is multiplied by in step 0, 1, …, steps - 1.

    Rises linearly from 0 over `warmup_steps`, then stays at 1 or falls to 0 along half a cosine; equal to
    transformers' schedules of these names. A function of the step alone, so a resumed run needs no state.
    """
    if step < warmup_steps:
        return step / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(steps - warmup_steps, 1)
    return max(0.5 * (1 + math.cos(math.pi * progress)), 0.0)
