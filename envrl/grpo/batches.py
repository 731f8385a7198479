"""From token rows to padded tensors, and from those to log-probs of the sampled tokens.

Padding is on the right and rows are causal, so no token ever attends to padding and the model
needs no attention mask, which lets it take its fastest attention. Masks come from lengths,
never from comparing ids with the padding id. What rows have in common may be computed once, see prefixes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from envrl.grpo.prefixes import Prefixes, Share, common, prefixes_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from envrl.rollout.transcript import TokenRow

Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(logits [N, V], targets [N]) → log-probs [N] and entropies [N]."""

_WORTH = 0.8
"""Below that share of the tokens, saving them gains more than gathering them costs."""
_COPY = 1 / 6
"""Memory of a token's query, key, value and attention, as a share of all that a layer keeps of a token."""
_CHUNK_LOGITS = 1 << 25
"""Logits that exist at once: 128 MiB in float32. Above, they are made in chunks, and again in backward."""


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right to the longest of them."""

    ids_BT: Tensor
    attention_BT: Tensor
    """True on every token of a row, False on padding."""
    mask_BT: Tensor
    """True on sampled tokens."""
    logprobs_BT: Tensor
    """The engine's, as sampled; 0 elsewhere."""
    advantages_BT: Tensor
    prefixes: Prefixes | None = None
    """How the rows are computed; None: each by itself. Without the last column, which predicts nothing."""

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        moved: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if x is not None}
        return Batch(**moved)


def micro_batches(
    rows: Sequence[TokenRow], *, max_tokens: int, pad_id: int, share: Share = False
) -> list[Batch]:
    """Every row once, in batches of at most `max_tokens` tokens; a row longer than that stands alone.

    With `share`, what the rows of a batch have in common counts once, and the copies that attention makes
    of a token a sixth, as they take about that much of its memory. Without, padding counts, too. `auto`
    shares where that leaves fewer than _WORTH of the tokens. The order is a function of the rows alone.
    """
    plain = _by_length(rows, max_tokens)
    if share:
        alike = _by_prefix(rows, max_tokens)
        distinct = sum(tokens for _, tokens in alike)
        padded = sum(len(cut) * len(cut[0].ids_T) for cut in plain)
        if share is True or distinct < _WORTH * padded:
            return [_shared(cut, pad_id) for cut, _ in alike]
    return [_padded(cut, pad_id) for cut in plain]


def _by_length(rows: Sequence[TokenRow], max_tokens: int) -> list[list[TokenRow]]:
    """Longest first."""
    longest_first = sorted(rows, key=lambda row: -len(row.ids_T))
    cuts, start = [], 0
    while start < len(longest_first):
        fitting = max_tokens // max(len(longest_first[start].ids_T), 1)
        cuts.append(longest_first[start : start + max(fitting, 1)])
        start += len(cuts[-1])
    return cuts


def _by_prefix(rows: Sequence[TokenRow], max_tokens: int) -> list[tuple[list[TokenRow], int]]:
    """In lexicographic order, each cut with the number of its distinct prefixes."""
    cuts: list[list[TokenRow]] = []
    counts: list[int] = []
    budget = 0.0
    for row in sorted(rows, key=lambda row: row.ids_T):
        length = len(row.ids_T)
        shared = common(cuts[-1][-1].ids_T, row.ids_T) if cuts else 0
        cost = length - shared + _COPY * shared
        if not cuts or cost > budget:
            cuts.append([])
            counts.append(0)
            shared, cost, budget = 0, length, max_tokens
        cuts[-1].append(row)
        counts[-1] += length - shared
        budget -= cost
    return list(zip(cuts, counts, strict=True))


def _shared(rows: Sequence[TokenRow], pad_id: int) -> Batch:
    return replace(_padded(rows, pad_id), prefixes=prefixes_of([row.ids_T[:-1] for row in rows]))


def _padded(rows: Sequence[TokenRow], pad_id: int) -> Batch:
    def stack(name: str, fill: float, dtype: torch.dtype) -> Tensor:
        lists = [list(getattr(row, name)) for row in rows]
        return torch.tensor([list_T + [fill] * (width - len(list_T)) for list_T in lists], dtype=dtype)

    lengths_B = torch.tensor([len(row.ids_T) for row in rows])
    width = int(lengths_B.max())
    return Batch(
        ids_BT=stack("ids_T", pad_id, torch.long),
        attention_BT=torch.arange(width) < lengths_B[:, None],
        mask_BT=stack("mask_T", 0, torch.bool),
        logprobs_BT=stack("logprobs_T", 0.0, torch.float32),
        advantages_BT=stack("advantages_T", 0.0, torch.float32),
    )


def token_logprobs(
    model: PreTrainedModel, batch: Batch, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each sampled token given those before it, and the entropy of its distribution.

    Both are float32 [B, T] and 0 outside the mask and at position 0, which nothing predicts. The
    entropy carries a gradient only where that is asked for. Only the sampled tokens are multiplied with
    the vocabulary, and no more than `_CHUNK_LOGITS` logits are held at once.
    """

    def score(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        return _score(logits_NV.float() / temperature, targets_N, entropy_gradient)

    chosen_BT = batch.mask_BT.clone()
    chosen_BT[:, 0] = False
    inputs, where_N = _inputs(model, batch, chosen_BT[:, 1:])
    targets_N = batch.ids_BT[chosen_BT]
    if _has_plain_head(model):
        hidden_NH = _decode(model, inputs).flatten(0, 1)[where_N]
        logprobs_N, entropy_N = _score_chunks(score, _head(model), hidden_NH, targets_N)
    else:
        width = inputs["input_ids"].shape[1]
        columns, column_N = (where_N % width).unique(return_inverse=True)
        logits_BCV = model(**inputs, use_cache=False, logits_to_keep=columns).logits
        logprobs_N, entropy_N = score(logits_BCV[where_N // width, column_N], targets_N)
    empty_BT = torch.zeros_like(batch.ids_BT, dtype=torch.float32)
    return empty_BT.masked_scatter(chosen_BT, logprobs_N), empty_BT.masked_scatter(chosen_BT, entropy_N)


def _inputs(model: PreTrainedModel, batch: Batch, chosen_BT: Tensor) -> tuple[dict[str, Any], Tensor]:
    """What the model is called with, and where the chosen tokens then stand in its flattened output."""
    if batch.prefixes is not None:
        return batch.prefixes.inputs(model), batch.prefixes.index_BT[chosen_BT]
    return {"input_ids": batch.ids_BT[:, :-1]}, chosen_BT.flatten().nonzero().squeeze(-1)


def _decode(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    hidden_BTH: Tensor = decoder(**inputs, use_cache=False).last_hidden_state
    return hidden_BTH


def _head(model: PreTrainedModel) -> nn.Linear:
    head: nn.Linear = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def _score(logits_NV: Tensor, targets_N: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    everywhere_NV = logprobs_NV if entropy_gradient else logprobs_NV.detach()
    entropy_N = -(everywhere_NV.exp() * everywhere_NV).sum(-1)
    return logprobs_NV.gather(-1, targets_N[:, None]).squeeze(-1), entropy_N


def _score_chunks(
    score: Score, head: nn.Linear, hidden_NH: Tensor, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    """`score` of the head's logits; several chunks are not kept for backward but computed again there."""

    def scored(hidden_NH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        return score(head(hidden_NH), targets_N)

    size = max(_CHUNK_LOGITS // head.out_features, 1)
    if len(targets_N) <= size:
        return scored(hidden_NH, targets_N)
    chunks = zip(torch.split(hidden_NH, size), torch.split(targets_N, size), strict=True)
    scores = [checkpoint(scored, *chunk, use_reentrant=False) for chunk in chunks]
    logprobs, entropies = zip(*scores, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


_PLAIN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _has_plain_head(model: PreTrainedModel) -> bool:
    """Whether logits are the output embedding of the last hidden state and nothing more.

    Some models cap or scale them besides (Gemma, Cohere, Granite); tried on two tokens, once per model.
    """
    if model not in _PLAIN:
        was_training = model.training
        model.train(False)
        with torch.no_grad():
            ids_BT = torch.arange(2, device=model.device)[None]  # two, as padding's embedding may be all zero
            logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
            _PLAIN[model] = torch.equal(_head(model)(_decode(model, {"input_ids": ids_BT})), logits_BTV)
        model.train(was_training)
    return _PLAIN[model]
