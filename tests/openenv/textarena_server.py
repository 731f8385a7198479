"""An OpenEnv app around the `textarena` package that answers as the published TextArena server does.

Fields, texts and rewards are the published ones. Ours are: seeds that work (`seeded=False` drops them, as
the published server did for long), one dictionary for all sessions instead of 3 s and 46 MB each, and no
downloads.
"""

from __future__ import annotations

import re
from collections import Counter
from threading import Lock
from typing import Any
from uuid import uuid4

import nltk
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import BaseModel, Field

nltk.download = lambda *args, **kwargs: True  # textarena calls it at import and for every session

import textarena  # noqa: E402
from textarena.envs.Wordle import env as wordle  # noqa: E402

_dictionary = wordle.EnglishDictionary(keep_proper_nouns=False, include_nltk=True)
wordle.EnglishDictionary = lambda **kwargs: _dictionary

_seeding = Lock()  # textarena seeds the random module of the whole process


class TextArenaMessage(BaseModel):
    sender_id: int
    content: str
    category: str


class TextArenaAction(Action):
    message: str


class TextArenaObservation(Observation):
    prompt: str
    messages: list[TextArenaMessage] = Field(default_factory=list)
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=list)
    info: dict[str, Any] = Field(default_factory=dict)


class TextArenaState(State):
    env_id: str
    num_players: int = 1
    max_turns: int | None = None
    turn: int = 0
    last_reward: float = 0.0
    last_info: dict[str, Any] = Field(default_factory=dict)
    raw_state: dict[str, Any] = Field(default_factory=dict)
    """With the secret: nothing for a model to see."""


class TextArenaEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_id: str, *, seeded: bool) -> None:
        super().__init__()
        self._game = textarena.make(env_id=env_id)
        self._seeded = seeded
        self._guessed: Counter[str] = Counter()
        self._state = TextArenaState(env_id=env_id)
        self._game.reset(num_players=1)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **row: Any
    ) -> TextArenaObservation:
        layer = self._game
        while hasattr(layer, "env"):  # the layer that collects the transcript never forgets by itself
            layer.full_observations = {}
            layer = layer.env
        with _seeding:
            self._game.reset(num_players=1, seed=seed if self._seeded else None)
        self._guessed.clear()
        self._state = TextArenaState(env_id=self._state.env_id, episode_id=episode_id or str(uuid4()))
        return self._observe(0.0, False)

    def step(
        self, action: TextArenaAction, timeout_s: float | None = None, **row: Any
    ) -> TextArenaObservation:
        done, _ = self._game.step(action.message)
        self._state.step_count += 1
        reward = float((self._game.state.rewards or {}).get(0, 0.0))
        observation = self._observe(reward, done)
        if self._state.env_id.startswith("Wordle"):
            signals = self._signals(action.message, observation.messages[0].content, reward)
            observation.info["reward_signals"] = observation.metadata["reward_signals"] = signals
        self._state.last_info, self._state.last_reward = dict(observation.info), reward
        return observation

    @property
    def state(self) -> TextArenaState:
        return self._state

    def _observe(self, reward: float, done: bool) -> TextArenaObservation:
        player, transcript = self._game.get_observation()
        message = TextArenaMessage(sender_id=-1, content=transcript, category="MESSAGE")
        turn = self._state.turn = self._game.state.turn
        self._state.raw_state = {"turn": turn, "game_state": self._game.state.game_state}
        return TextArenaObservation(
            prompt=transcript.strip() if turn == 0 else self._state.env_id,
            messages=[message],
            current_player_id=player,
            legal_players=[0],
            info=dict(self._game.state.step_info),
            metadata={"env_id": self._state.env_id, "turn": turn, "raw_messages": [message.model_dump()]},
            reward=reward,
            done=done,
        )

    def _signals(self, said: str, transcript: str, reward: float) -> dict[str, float]:
        """Read off the transcript as the published server does; a win has no row and repeats the last."""
        rows = re.findall(r"^[GYX](?: [GYX]){4}$", transcript, re.MULTILINE)
        marks = rows[-1] if rows else ""
        guess = re.search(r"\[[A-Za-z]{5}\]", said)
        before = self._guessed[guess[0].lower()] if guess else 0
        if guess:
            self._guessed[guess[0].lower()] += 1
        return {
            "wordle.greens": marks.count("G") / 5,
            "wordle.yellows": marks.count("Y") / 5,
            "wordle.repetitions": 1.0 - before,
            "wordle.correct": reward,
        }


def app(env_id: str, *, seeded: bool = True, capacity: int = 64) -> Any:
    """The ASGI app of one game."""
    return create_app(
        lambda: TextArenaEnvironment(env_id, seeded=seeded),
        TextArenaAction,
        TextArenaObservation,
        env_name="textarena_env",
        max_concurrent_envs=capacity,
    )
