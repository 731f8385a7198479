"""An OpenEnv app around the `open_spiel` package that answers as the published OpenSpiel server does.

`seeded=False` gives `reset` no parameters, as the published one has none; ours seeds the chance events.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from open_spiel.python import rl_environment
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field


class OpenSpielAction(Action):
    action_id: int
    game_name: str = "catch"
    game_params: dict[str, Any] = Field(default_factory=dict)


class OpenSpielObservation(Observation):
    info_state: list[float]
    legal_actions: list[int]
    game_phase: str = "playing"
    current_player_id: int = 0
    opponent_last_action: int | None = None


class OpenSpielState(State):
    game_name: str = "catch"
    agent_player: int = 0
    opponent_policy: str = "random"
    game_params: dict[str, Any] = Field(default_factory=dict)
    num_players: int = 1


class OpenSpielEnvironment(Environment):
    """A game for one player."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, game: str) -> None:
        super().__init__()
        self._game = rl_environment.Environment(game)
        self._state = OpenSpielState(game_name=game)

    def reset(self) -> OpenSpielObservation:
        self._state.episode_id, self._state.step_count = str(uuid4()), 0
        return self._observe(self._game.reset())

    def step(
        self, action: OpenSpielAction, timeout_s: float | None = None, **row: Any
    ) -> OpenSpielObservation:
        self._state.step_count += 1
        return self._observe(self._game.step([action.action_id]))

    @property
    def state(self) -> OpenSpielState:
        return self._state

    def _observe(self, step: rl_environment.TimeStep) -> OpenSpielObservation:
        phase = "terminal" if step.last() else "initial" if step.first() else "playing"
        return OpenSpielObservation(
            info_state=list(step.observations["info_state"][0]),
            legal_actions=step.observations["legal_actions"][0],
            game_phase=phase,
            current_player_id=step.observations["current_player"],
            done=step.last(),
            reward=None if step.rewards is None else float(step.rewards[0]),
        )


class SeededOpenSpielEnvironment(OpenSpielEnvironment):
    """Every session has a random generator of its own, which a seed starts."""

    def reset(self, seed: int | None = None) -> OpenSpielObservation:
        self._game.seed(seed)
        return super().reset()


def app(game: str, *, seeded: bool = True, capacity: int = 64) -> Any:
    """The ASGI app of one game."""
    cls = SeededOpenSpielEnvironment if seeded else OpenSpielEnvironment
    return create_app(
        lambda: cls(game),
        OpenSpielAction,
        OpenSpielObservation,
        env_name="openspiel_env",
        max_concurrent_envs=capacity,
    )
