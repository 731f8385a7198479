"""Token in, token out: what was sampled is what is stored, attended to and trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from games import call  # type: ignore[import-not-found]

from envrl import compose
from envrl.engine import ScriptedEngine
from envrl.grpo.batches import micro_batches, token_logprobs
from envrl.model.chat import Chat
from envrl.model.tiny import bootstrap_tokenizer, build_model
from envrl.rollout.trajectory import Episode
from envrl.rollout.transcript import TokenRow


def sampled(episode: Episode) -> list[int]:
    transcript = episode.transcripts[0]
    return [i for i, m in zip(transcript.ids, transcript.mask, strict=True) if m]


def test_emitted_ids_are_kept_where_an_encoder_would_choose_others(play: Any, qwen: Any) -> None:
    """Ids that spell a word in pieces stay in pieces (trl#5224)."""
    chat = Chat(qwen, template_kwargs={})
    pieces = [*chat.encode("he"), *chat.encode("llo")]
    assert pieces != chat.encode("hello")
    first = [*pieces, *chat.encode(call("zebra")), chat.turn_end]
    second = [*pieces, *chat.encode(call("crane")), chat.turn_end]
    (episode,) = play("Guess", [first, second], chat=chat)
    assert sampled(episode) == first + second
    assert sampled(episode) != chat.encode(str(qwen.decode(sampled(episode))))
    transcript = episode.transcripts[0]
    assert len(transcript.ids) == len(transcript.mask) == len(transcript.logprobs)
    assert all(lp == -0.5 * m for lp, m in zip(transcript.logprobs, transcript.mask, strict=True))


def test_thinking_stays_though_the_template_would_drop_it(play: Any, qwen: Any) -> None:
    """The second prompt starts with the first and what was sampled after it (verl#6854)."""
    chat = Chat(qwen, template_kwargs={"enable_thinking": True})
    turn = [*chat.encode("<think>a</think>[crane]"), chat.turn_end]
    engine = ScriptedEngine([turn, turn])
    secret = "env.custom.args.secret=zebra"
    (episode,) = play("Guess", engine, "scheduler=gym", "scheduler.max_turns=2", secret, chat=chat)
    (_, first, _), (_, second, _) = engine.requests
    assert second[: len(first) + len(turn)] == first + turn
    assert "not crane" in qwen.decode(second[len(first) + len(turn) :])
    assert sampled(episode) == turn + turn
    assert qwen.decode(episode.transcripts[0].ids).count("<think>a</think>") == 2
    assert qwen.apply_chat_template(episode.messages, tokenize=False).count("<think>a</think>") < 2


def test_each_turn_ends_in_a_trained_end_token(play: Any, chat: Any) -> None:
    (episode,) = play("Guess", [call("zebra"), call("crane")])
    assert sampled(episode).count(chat.turn_end) == 2


def test_a_turn_cut_short_gets_its_end_token_untrained(play: Any, chat: Any) -> None:
    (episode,) = play(
        "Guess",
        ["hm" * 90, call("crane")],
        "scheduler.max_turn_tokens=70",
        "scheduler.continue_on_length=true",
    )
    transcript, turn = episode.transcripts[0], episode.turns[0]
    assert turn.cut
    end = turn.start + turn.tokens
    assert (transcript.ids[end], transcript.mask[end]) == (chat.turn_end, 0)


@pytest.fixture
def padded_with_its_end() -> Any:
    """A tokenizer whose padding is the token that ends a turn."""
    tokenizer = bootstrap_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def test_masks_never_come_from_the_padding_id(play: Any, padded_with_its_end: Any) -> None:
    """Ends of turns are attended to and trained, observations attended to only (trl#4974)."""
    pad = padded_with_its_end.pad_token_id
    chat = Chat(padded_with_its_end, template_kwargs={})
    assert chat.turn_end == pad
    long, short = [call("zebra"), call("zebra"), call("crane")], [call("crane")]
    episodes = [play("Guess", replies, chat=chat)[0] for replies in (long, short)]
    rows: list[TokenRow] = [row for episode in episodes for row in episode.rows(1.0)]
    (batch,) = micro_batches(rows, max_tokens=100_000, pad_id=pad)
    assert batch.attention_BT.sum(1).tolist() == [len(row.ids_T) for row in rows]
    for b, episode in enumerate(episodes):
        ends = [turn.start + turn.tokens - 1 for turn in episode.turns]
        assert batch.ids_BT[b, ends].tolist() == [pad] * len(ends)
        assert batch.mask_BT[b, ends].all()
        assert batch.attention_BT[b, ends].all()
        expected = torch.zeros_like(batch.mask_BT[b])
        for turn in episode.turns:
            expected[turn.start : turn.start + turn.tokens] = True
        assert torch.equal(batch.mask_BT[b], expected)
    shape = compose().model.tiny
    assert shape is not None
    model = build_model(shape, padded_with_its_end, seed=0)
    with torch.no_grad():
        logprobs_BT, _ = token_logprobs(model, batch)
        assert torch.equal(logprobs_BT < 0, batch.mask_BT)
        for b, row in enumerate(rows):
            alone = model(torch.tensor([row.ids_T])).logits[0, :-1].log_softmax(-1)
            targets = torch.tensor(row.ids_T[1:])
            expected = alone.gather(-1, targets[:, None])[:, 0] * torch.tensor(row.mask_T[1:])
            torch.testing.assert_close(logprobs_BT[b, 1 : len(row.ids_T)], expected, atol=1e-4, rtol=0)
