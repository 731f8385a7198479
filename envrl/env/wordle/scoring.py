"""The three rewards of TRL's guide, and the metrics of its evaluation table."""

from __future__ import annotations

GUESSES = 6


def scored(metrics: dict[str, float], *, won: bool, allowed: int = GUESSES) -> float:
    """Adds the three rewards to the metrics of a game, and guesses per win to a game won; returns their sum.

    win 1 + (1 - guesses / allowed) / 2, partial 0.1 for every green of the best guess of a game not won,
    invalid -0.1 for every invalid guess.
    """
    guesses = metrics["guesses"]
    three = {
        "win_reward": 1.0 + 0.5 * (1 - guesses / allowed) if won else 0.0,
        "partial_reward": 0.0 if won else 0.1 * metrics["greens"],
        "invalid_reward": 0.0 - 0.1 * metrics["invalid_guesses"],  # 0.0, not -0.0, for none
    }
    metrics |= three
    if won:
        metrics["guesses_per_win"] = guesses
    return sum(three.values())
