"""Group-relative policy optimisation: advantages → token rows → micro-batches → loss → optimizer step.

Axis letters: B rows of a micro-batch, T tokens of a row, G members of a group, V vocabulary,
N tokens picked out of a micro-batch, H hidden size, K turns of an episode, C columns of a micro-batch with a
sampled token, P prefixes that rows share, b rows of one bucket of equal lengths.

The two functions below are pure. They are loaded on first use, so that importing the package
does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envrl.grpo.advantages import group_advantages
    from envrl.grpo.loss import policy_loss

__all__ = ["group_advantages", "policy_loss"]


def __getattr__(name: str) -> Any:
    if name == "group_advantages":
        from envrl.grpo.advantages import group_advantages

        return group_advantages
    if name == "policy_loss":
        from envrl.grpo.loss import policy_loss

        return policy_loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
