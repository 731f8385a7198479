"""Transcript, Turn, TokenRow: what was said in an episode, token in and token out.

What the model sampled is what is trained, id for id. A transcript is append-only, and its ids, mask
and log-probs move together. T counts tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from envrl.engine.base import Generation, GenerationStop


@dataclass
class Transcript:
    """One append-only conversation. The three lists have one entry per token."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1: sampled by the model; 0: prompt, observation, or an end token that we added."""
    logprobs: list[float] = field(default_factory=list)
    """Of sampled tokens, under the distribution they were sampled from; 0.0 elsewhere."""
    prompt_tokens: int = 0
    """Length of the prompt, which max_tokens does not count."""

    def observe(self, ids: list[int]) -> None:
        """Appends tokens that the model did not choose."""
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def sample(self, generation: Generation) -> None:
        """Appends what the model sampled."""
        self.ids += generation.ids
        self.mask += [int(generation.trained)] * len(generation.ids)
        self.logprobs += generation.logprobs


@dataclass
class Turn:
    """One model turn and what the environment made of it."""

    text: str
    stop: GenerationStop
    tokens: int
    transcript: int
    """Index of its transcript in the episode."""
    start: int
    """Index of its first token in the transcript; it ends at start + tokens."""
    reward: float | None = None
    """By how much the environment's reward rose in this turn; None where it is unscored."""
    calls: int = 0
    failures: int = 0
    """Calls that could not be run, and texts without an action."""
    weights_version: int = 0
    generate_s: float = 0.0
    """The engine's: from the request to the answer."""
    step_s: float = 0.0
    """The environment's."""
    parse_s: float = 0.0
    """Ours: reading what the model said, and rendering what it is told next."""

    @property
    def cut(self) -> bool:
        """It ended for want of tokens, not by the model's choice."""
        return self.stop not in (GenerationStop.EOS, GenerationStop.STOP)


@dataclass(frozen=True)
class TokenRow:
    """One transcript on its way to the optimizer: four lists of length T."""

    ids_T: list[int]
    mask_T: list[int]
    logprobs_T: list[float]
    advantages_T: list[float]
    truncated: bool = False
    flat: bool = False
    """Its group has nothing to teach, as all members got the same reward."""
