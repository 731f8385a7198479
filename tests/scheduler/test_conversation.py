"""Conversations that somebody else keeps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from envrl.engine import Sampling, ScriptedEngine
from envrl.engine.transformers import TransformersEngine
from envrl.env.frozen_lake import FrozenLake
from envrl.env.host import Host
from envrl.model.chat import Chat
from envrl.model.tiny import build_model
from envrl.rollout.tasks import Task
from envrl.rollout.trajectory import Episode
from envrl.scheduler import answer
from envrl.spec import TinySpec

LIMITS = SimpleNamespace(max_tokens=10000, max_turn_tokens=None, step_timeout_s=None)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def spoken(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def episode_of(chat: Chat, **limits: Any) -> Episode:
    settings: Any = SimpleNamespace(**(vars(LIMITS) | limits))
    sampling = Sampling(max_tokens=1, stop_ids=chat.stop_ids)
    task, host = Task("lake", 1, 0, 0), Host(FrozenLake())
    return Episode(task, host, chat, limits=settings, sampling=sampling, name="e")


def talk(chat: Chat, replies: list[str], *conversations: list[dict[str, Any]], **limits: Any) -> Episode:
    """An episode in which the model answered these conversations, one after the other."""
    engine = ScriptedEngine(replies, encode=chat.encode, stop_id=chat.turn_end)
    episode = episode_of(chat, **limits)

    async def run() -> None:
        for messages in conversations:
            await answer(episode, messages, engine)

    asyncio.run(run())
    return episode


def whole(chat: Chat, episode: Episode, transcript: int = 0) -> str:
    return str(chat.tokenizer.decode(episode.transcripts[transcript].ids))


def test_what_only_grew_is_appended(chat: Chat) -> None:
    first = [user("a")]
    episode = talk(chat, ["b", "d"], first, [*first, spoken("b"), user("c")])
    assert len(episode.transcripts) == 1
    assert episode.messages == [user("a"), spoken("b"), user("c"), spoken("d")]
    assert whole(chat, episode) == chat.tokenizer.apply_chat_template(
        episode.messages, tokenize=False
    ).removesuffix("\n")


def test_what_an_agent_carries_besides_does_not_matter(chat: Chat) -> None:
    reply = {"role": "tool", "content": "c", "name": "t", "tool_call_id": "1"}
    carried = [{**user("a"), "id": 1}, {**spoken("b"), "refusal": None}, reply]
    episode = talk(chat, ["b", "d"], [user("a")], carried)
    assert len(episode.transcripts) == 1


@pytest.mark.parametrize(
    "second",
    [
        [user("A"), spoken("b"), user("c")],
        [user("a"), spoken("b!"), user("c")],
        [user("a"), spoken("b"), user("c"), spoken("forged"), user("e")],
        [user("c")],
    ],
)
def test_what_was_rewritten_starts_again(chat: Chat, second: list[dict[str, Any]]) -> None:
    episode = talk(chat, ["b", "d"], [user("a")], second)
    assert len(episode.transcripts) == 2
    assert episode.messages == [*second, spoken("d")]
    assert [sum(t.mask) for t in episode.transcripts] == [2, 2]
    assert episode.prompt_messages == len(second)


def test_a_message_of_its_own_is_gone_on_with(chat: Chat) -> None:
    episode = talk(chat, ["b", "d"], [user("a")], [user("a"), spoken("b and")])
    (transcript,) = episode.transcripts
    assert episode.messages == [user("a"), spoken("b andd")]
    assert chat.decode(transcript.ids[transcript.prompt_tokens :]) == "b andd"
    assert [turn.text for turn in episode.turns] == ["b", "d"]
    for turn in episode.turns:
        ids = transcript.ids[turn.start : turn.start + turn.tokens]
        assert (chat.decode(ids), transcript.mask[turn.start]) == (turn.text, 1)


def test_a_message_that_the_model_did_not_write_is_gone_on_with(chat: Chat) -> None:
    episode = talk(chat, ["d"], [user("a"), spoken("Let me")])
    (transcript,) = episode.transcripts
    assert episode.messages == [user("a"), spoken("Let med")]
    assert whole(chat, episode).endswith("Let med<|end|>")
    assert sum(transcript.mask) == 2
    assert transcript.prompt_tokens == len(transcript.ids) - 2


def test_callers_keep_their_messages(chat: Chat) -> None:
    mine = [user("a")]
    talk(chat, ["b"], mine)
    assert mine == [user("a")]


def test_no_room_is_no_answer(chat: Chat) -> None:
    episode = talk(chat, ["b"] * 3, [user("a")], [user("a"), spoken("b"), user("c" * 100)], max_tokens=50)
    assert len(episode.turns) == 1


def test_every_token_is_trained_in_the_context_it_was_sampled_in(chat: Chat) -> None:
    """A model's own log-probs, over transcripts that grew, were rewritten, and were gone on with."""
    shape = TinySpec(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2048,
        initializer_range=0.1,
        vocab_size=300,
    )
    model = build_model(shape, chat.tokenizer, seed=1)
    model.eval()
    episode = episode_of(chat, max_turn_tokens=12)

    async def run() -> None:
        engine = TransformersEngine(model)
        await engine.start()
        for step in range(6):
            said = [dict(message) for message in episode.messages] or [user("a")]
            if step in (1, 4):
                said.append(user("and?"))
            if step == 2:
                said[-1]["content"] += " but"
            if step in (3, 5):
                said = [user("again"), spoken("As I said,")]
            assert await answer(episode, said, engine)
        await engine.close()

    asyncio.run(run())
    assert len(episode.transcripts) == 3
    for transcript in episode.transcripts:
        with torch.no_grad():
            logits = model(torch.tensor([transcript.ids])).logits[0].float().log_softmax(-1)
        for place, (token, mask) in enumerate(zip(transcript.ids, transcript.mask, strict=True)):
            if mask:
                known = logits[place - 1, token].item()
                assert transcript.logprobs[place] == pytest.approx(known, abs=1e-4)
