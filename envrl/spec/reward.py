"""What an episode is worth."""

from __future__ import annotations

from envrl.spec.base import Spec


class RewardSpec(Spec):
    """Reward terms of the whole run."""

    terms: list[str] | None
    """None: each environment's own env.<key>.reward. A term is a name or `package.module:function`."""
    weights: dict[str, float] | list[float] | None
    """By term, 1 where a term is not named; or one per term, in the order of `terms`."""

    def weight_of(self, terms: list[str]) -> dict[str, float]:
        """The weight of each term."""
        if isinstance(self.weights, list):
            return dict(zip(terms, self.weights, strict=True))
        return {term: (self.weights or {}).get(term, 1.0) for term in terms}
