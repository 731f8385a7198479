"""Scripted policies behind the engine's contract, so that solver games pass through the real scheduler.

What such an engine "samples" is exactly what a model would have to sample to act so: warm-start games
are rendered by the code that renders rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from envrl.engine.base import Engine, Generation, GenerationStop, Sampling
from envrl.env.base import Face
from envrl.env.policies import Policy
from envrl.model.tool_calls import THINK_CLOSE, THINK_OPEN, format_tool_call
from envrl.seeds import derive

if TYPE_CHECKING:
    from envrl.rollout.trajectory import Episode


class PolicyEngine(Engine):
    """Speaks for one episode in the words of a scripted policy."""

    def __init__(
        self, policy: Policy, episode: Episode, face: Face, *, max_context: int, teacher: Policy | None = None
    ) -> None:
        """With a teacher, only turns in which the policy acts as the teacher would are worth learning."""
        self.max_context = max_context
        self._policy = policy
        self._teacher = teacher
        self._episode = episode
        self._face = face
        self._rng = Random(derive(episode.sampling.seed, "policy"))

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """The tokens of the policy's next action, end token included."""
        chat = self._episode.chat
        words, worth_learning = self._words()
        spoken = [*chat.encode(words), chat.turn_end]
        stop = GenerationStop.EOS if len(spoken) <= sampling.max_tokens else GenerationStop.LENGTH
        spoken = spoken[: sampling.max_tokens]
        return Generation(spoken, [0.0] * len(spoken), stop, self.weights_version, worth_learning)

    def _words(self) -> tuple[str, bool]:
        environment = self._episode.host.environment
        if environment.done:
            return "Done.", True
        thought = environment.thought() if self._episode.chat.thinks else ""
        call = self._policy(environment, self._rng)
        action = format_tool_call(call) if self._face is Face.TOOL else environment.format_action(call)
        if thought:
            action = f"{THINK_OPEN}\n{thought}\n{THINK_CLOSE}\n\n{action}"
        return action, self._teacher is None or call == self._teacher(environment, self._rng)


def scripted(
    policy: Policy, *, max_context: int = 1 << 30, teacher: Policy | None = None
) -> Callable[[Episode, Face], Engine]:
    """An engine for each episode, all playing this policy."""
    return lambda episode, face: PolicyEngine(policy, episode, face, max_context=max_context, teacher=teacher)
