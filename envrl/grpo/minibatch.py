"""What the updates of one step share, and what they add up."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from envrl.grpo.batches import Batch


@dataclass
class Piece:
    """A micro-batch, and what stays as it is over a step's updates."""

    batch: Batch
    old_BT: Tensor | None = None
    """Log-probs before the first update."""
    reference_BT: Tensor | None = None


@dataclass
class MiniBatch:
    """This rank's part of the rows of one update. Its sizes are those of all ranks."""

    pieces: list[Piece]
    run_rows: float
    tokens: float
    normalizer: float


@dataclass
class Sums:
    """Over the micro-batches of one rank: the loss, and the metrics weighted with their tokens."""

    loss: float = 0.0
    tokens: float = 0.0
    weighted: dict[str, float] = field(default_factory=dict)

    def add(self, loss: Tensor, tokens: float, metrics: dict[str, Tensor]) -> None:
        """Adds a micro-batch, whose metrics are means over its tokens."""
        self.loss += float(loss.detach())
        self.tokens += tokens
        for name, value in metrics.items():
            self.weighted[name] = self.weighted.get(name, 0.0) + float(value) * tokens

    def __add__(self, other: Sums) -> Sums:
        names = dict.fromkeys([*self.weighted, *other.weighted])
        weighted = {name: self.weighted.get(name, 0.0) + other.weighted.get(name, 0.0) for name in names}
        return Sums(self.loss + other.loss, self.tokens + other.tokens, weighted)
