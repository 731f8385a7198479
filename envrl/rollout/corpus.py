"""Solver games as text: what the tiny model's tokenizer is built from."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from random import Random

import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from envrl.engine.base import Sampling
from envrl.env import build, environment_class
from envrl.env.base import Environment, ToolCall, has_solver
from envrl.env.policies import Policy, noisy, random
from envrl.env.schema import tool_schemas
from envrl.model import tiny
from envrl.model.chat import Chat
from envrl.rollout.policy import scripted
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Tasks
from envrl.spec import RunSpec

GAMES = 256
TURNS = 32
"""Of a game that has no end."""


async def tiny_tokenizer(spec: RunSpec, *, cache: Path) -> PreTrainedTokenizerBase:
    """The tiny model's tokenizer for this run's environments, from the cache where it was built before.

    The digest in its folder's name covers everything that shapes it: the games as they are rendered, the
    size of the vocabulary, and the code and library that build it. Seeds of the run are not among them.
    """
    assert spec.model.tiny is not None
    texts = await game_texts(spec)
    code = Path(tiny.__file__).read_text("utf-8")
    choices = argument_choices(spec)
    shaped_by = [texts, choices, spec.model.tiny.vocab_size, code, tokenizers.__version__]
    folder = cache / f"tiny-{sha256(json.dumps(shaped_by).encode()).hexdigest()[:12]}"
    if not folder.exists():
        building = folder.with_name(f".{folder.name}.{os.getpid()}")
        tiny.train_tokenizer(texts, spec.model.tiny.vocab_size, choices=choices).save_pretrained(building)
        try:
            building.rename(folder)
        except OSError:  # another process was faster; what it built is the same
            shutil.rmtree(building)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return tokenizer


def argument_choices(spec: RunSpec) -> list[str]:
    """What the tools' arguments can be, where that is a short list: `left`, `right`, …"""
    schemas = [schema for key, env in spec.env.items() for schema in tool_schemas(build(key, env))]
    arguments = [a for s in schemas for a in s["function"]["parameters"]["properties"].values()]
    return sorted({str(choice) for argument in arguments for choice in argument.get("enum", ())})


async def game_texts(spec: RunSpec) -> list[str]:
    """Games of the noisy solver, rendered as the scheduler renders them, special tokens included."""
    tokenizer = tiny.bootstrap_tokenizer()
    turns = spec.scheduler.max_turns or TURNS
    unlimited = {"max_tokens": 1 << 20, "max_turn_tokens": None, "max_turns": turns}
    lenient = spec.model_copy(
        update={
            "seed": 0,
            "scheduler": spec.scheduler.model_copy(update=unlimited),
            "rollout": spec.rollout.model_copy(update={"max_error_rate": 1.0}),
        }
    )
    runner = Runner(lenient, Chat(tokenizer, template_kwargs=spec.model.chat_template_kwargs))
    playable = [key for key, env in spec.env.items() if _is_scripted(environment_class(env.kind, env.target))]
    if not playable:
        return []
    tasks = Tasks(spec.env, seed=0, stage="tokenizer", members=1, only=playable)
    sampling = Sampling(max_tokens=unlimited["max_tokens"] or 0)
    played = await runner.run(
        tasks.groups(0, GAMES), scripted(solver(noise=0.5)), sampling, name="tokenizer", scored=False
    )
    return [
        str(tokenizer.decode(transcript.ids))
        for group in played
        for episode in group
        for transcript in episode.transcripts
    ]


def _is_scripted(environment: type[Environment]) -> bool:
    """Whether it can be played without a model."""
    return has_solver(environment) or environment.random_action is not Environment.random_action


def solver(*, noise: float) -> Policy:
    """The noisy solver; plain random play where an environment has no solver."""
    best = noisy(noise)

    def policy(environment: Environment, rng: Random) -> ToolCall:
        return best(environment, rng) if has_solver(type(environment)) else random(environment, rng)

    return policy
