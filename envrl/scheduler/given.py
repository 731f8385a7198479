"""Token ids, loss masks and log-probs that an ms-swift plugin gives for the model's turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from envrl.errors import WorldError

if TYPE_CHECKING:
    from envrl.env.compat.swift import RolloutOutput
    from envrl.rollout.trajectory import Episode
    from envrl.rollout.transcript import Turn


class Given(NamedTuple):
    """What a plugin says of one turn; a mask of None is all ones, log-probs of None are the engine's."""

    ids: list[int]
    mask: list[int] | None
    logprobs: list[float] | None


def apply_given(episode: Episode, outputs: Sequence[RolloutOutput]) -> None:
    """Enters them into the transcripts: what a plugin masks or leaves out of a turn is not trained.

    A turn for which nothing is given is trained as it was sampled. Text that a plugin put behind a turn
    stands in the transcript already, untrained. Raises WorldError where other tokens than those that were
    sampled are to be trained.
    """
    turns = list(episode.turns)
    for given in _per_turn(outputs):
        place = _place(episode, turns, given.ids)
        if place is None:
            raise WorldError(f"response_token_ids {given.ids[:8]}… begin no turn of the model's")
        _enter(episode, turns[place], given)
        del turns[: place + 1]


def _per_turn(outputs: Sequence[RolloutOutput]) -> Iterator[Given]:
    for output in outputs:
        ids: list[Any] = output.response_token_ids
        masks: list[Any] = output.response_loss_mask
        logprobs: list[Any] = output.rollout_logprobs
        if ids and isinstance(ids[0], int):  # one turn, not in a list of turns
            ids, masks, logprobs = [ids], [masks] if masks else [], [logprobs] if logprobs else []
        if masks and [len(mask) for mask in masks] != [len(turn) for turn in ids]:
            raise WorldError("response_loss_mask must have one entry per id of response_token_ids")
        for number, turn in enumerate(ids):
            if turn:
                mask = masks[number] if masks else None
                yield Given(turn, mask, logprobs[number] if len(logprobs) == len(ids) else None)


def _place(episode: Episode, turns: list[Turn], ids: list[int]) -> int | None:
    """Which turn the ids stand for: the first that they hold or begin, else that begins as they do."""
    shared = [_shared(episode, turn, ids) for turn in turns]
    whole = (n for n, turn in enumerate(turns) if shared[n] >= min(len(ids), max(turn.tokens - 1, 1)))
    return next(whole, next((n for n, common in enumerate(shared) if common), None))


def _shared(episode: Episode, turn: Turn, ids: list[int]) -> int:
    """How many ids a turn begins with that are given, too."""
    sampled = episode.transcripts[turn.transcript].ids[turn.start : turn.start + turn.tokens]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(sampled, ids, strict=False)))


def _enter(episode: Episode, turn: Turn, given: Given) -> None:
    transcript = episode.transcripts[turn.transcript]
    shared = _shared(episode, turn, given.ids)
    mask = list(given.mask or [1] * len(given.ids))
    if any(mask[shared:]):
        number = episode.turns.index(turn) + 1
        raise WorldError(
            f"response_loss_mask trains {sum(mask[shared:])} tokens behind turn {number} that the model "
            "did not sample; give them mask 0"
        )
    mask = mask[:shared]
    end = transcript.ids[turn.start + shared : turn.start + turn.tokens]
    if len(end) == 1 and end[0] in episode.chat.stop_ids and len(given.ids) == shared:
        mask.append(mask[-1])  # the end token, which plugins do not see, goes with the token before it
    mask += [0] * (turn.tokens - len(mask))
    logprobs = iter(given.logprobs if given.logprobs and len(given.logprobs) == sum(mask[:shared]) else ())
    for place, trained in enumerate(mask, turn.start):
        transcript.mask[place] = trained
        known = next(logprobs, transcript.logprobs[place]) if trained else 0.0
        transcript.logprobs[place] = known
