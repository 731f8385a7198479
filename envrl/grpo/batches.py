"""From token rows to padded tensors, and from those to log-probs of the sampled tokens.

Padding is on the right and rows are causal, so no token ever attends to padding and the model
needs no attention mask, which lets it take its fastest attention. Masks come from lengths,
never from comparing ids with the padding id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from envrl.rollout.transcript import TokenRow

Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(logits [N, V], targets [N]) → log-probs [N] and entropies [N]."""

_CHUNK_LOGITS = 1 << 26
"""Logits that exist at once: 256 MiB in float32. Above, they are made in chunks, and again in backward."""


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

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def micro_batches(rows: Sequence[TokenRow], *, max_tokens: int, pad_id: int) -> list[Batch]:
    """Every row once, longest first, in batches of at most `max_tokens` padded tokens.

    A row longer than that stands alone. The order is a function of the rows alone.
    """
    longest_first = sorted(rows, key=lambda row: -len(row.ids_T))
    batches, start = [], 0
    while start < len(longest_first):
        fitting = max_tokens // max(len(longest_first[start].ids_T), 1)
        chosen = longest_first[start : start + max(fitting, 1)]
        batches.append(_padded(chosen, pad_id))
        start += len(chosen)
    return batches


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
    inputs_BT = batch.ids_BT[:, :-1]
    targets_N = batch.ids_BT[chosen_BT]
    if _has_plain_head(model):
        hidden_NH = _decode(model, inputs_BT)[chosen_BT[:, 1:]]
        logprobs_N, entropy_N = _score_chunks(score, _head(model), hidden_NH, targets_N)
    else:
        columns = chosen_BT[:, 1:].any(0).nonzero().squeeze(-1)
        logits_BCV = model(input_ids=inputs_BT, use_cache=False, logits_to_keep=columns).logits
        logprobs_N, entropy_N = score(logits_BCV[chosen_BT[:, 1 + columns]], targets_N)
    empty_BT = torch.zeros_like(batch.ids_BT, dtype=torch.float32)
    return empty_BT.masked_scatter(chosen_BT, logprobs_N), empty_BT.masked_scatter(chosen_BT, entropy_N)


def _decode(model: PreTrainedModel, ids_BT: Tensor) -> Tensor:
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    hidden_BTH: Tensor = decoder(input_ids=ids_BT, use_cache=False).last_hidden_state
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
            _PLAIN[model] = torch.equal(_head(model)(_decode(model, ids_BT)), logits_BTV)
        model.train(was_training)
    return _PLAIN[model]
