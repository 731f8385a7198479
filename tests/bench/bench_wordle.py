"""64 games of Wordle by the solver, in a process that has played none: load, environment and solver time."""

from __future__ import annotations

import time

import envrl.env

GAMES = 64


def play(seed: int) -> int:
    """One game; its number of guesses."""
    game = envrl.env.make("wordle")
    game.reset(seed=seed)
    while not game.done:
        call = game.gold_action()
        game.tools()[call.name](**call.arguments)
    return int(game.metrics["guesses"])


def main() -> None:
    """Prints seconds for the first games, which fill the solver's caches, and for the same games again."""
    for label in ("cold", "warm"):
        started = time.perf_counter()
        guesses = sum(play(seed) for seed in range(GAMES))
        took = time.perf_counter() - started
        print(f"wordle, {label}: {GAMES} games in {took:.3f} s, {1e6 * took / guesses:.0f} µs per guess")


if __name__ == "__main__":
    main()
