"""Rows that begin alike: every distinct prefix of a micro-batch is computed once.

The members of a group share their prompt, and often their first turns. Each token is a function of those
before it, so what rows have in common stands in the forward pass once: the pass works on one sequence of
the distinct prefixes, each with the position that it has in its rows. Attention alone sees rows again: they
are put together from the sequence's queries, keys and values, and what comes out is taken back into the
sequence. So it is the same kernel on the same rows as without sharing, and of those that add little to
others it computes little more than that. A block mask over the whole sequence would do as well, but its
cost grows with the square of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from envrl.errors import ConfigError

Share = Literal["auto"] | bool
"""Of `grpo.share_prompts`."""
_ATTENTION = "envrl_prefixes"
_BUCKET = 0.8
"""Rows that are attended to together are at least this long, as a share of the longest of them."""
_LATE = 1 / 3
"""Rows that add no more than this share of their length are attended to from there on, which takes a mask."""


@dataclass(frozen=True)
class Bucket:
    """Rows of similar length, which attention runs over together."""

    index_bT: Tensor
    start: int
    """Before it, other rows have all that these have; their queries begin here."""

    @property
    def mask(self) -> Tensor | None:
        """What the queries may attend to, 1 x 1 x (T - start) x T; None where they are all of the rows."""
        if not self.start:
            return None
        width = self.index_bT.shape[1]
        before = torch.ones(1, 1, width - self.start, width, dtype=torch.bool, device=self.index_bT.device)
        return before.tril(self.start)

    def to(self, device: torch.device | str) -> Bucket:
        """The same on another device."""
        return Bucket(self.index_bT.to(device), self.start)


@dataclass(frozen=True)
class Prefixes:
    """The P distinct prefixes of B rows, as one sequence; P also names their last tokens."""

    ids_P: Tensor
    positions_P: Tensor
    index_BT: Tensor
    """Which prefix ends at each token of each row; 0 on padding."""
    buckets: tuple[Bucket, ...]
    source_P: Tensor
    """Where each prefix stands among the buckets' queries, flattened and joined."""

    def to(self, device: torch.device | str) -> Prefixes:
        """The same on another device."""
        return Prefixes(
            self.ids_P.to(device),
            self.positions_P.to(device),
            self.index_BT.to(device),
            tuple(bucket.to(device) for bucket in self.buckets),
            self.source_P.to(device),
        )

    def inputs(self, model: PreTrainedModel) -> dict[str, Any]:
        """What a model takes them as. The mask only keeps transformers from making one of its own."""
        assert model.config._attn_implementation == _ATTENTION, (
            "prefixes are understood inside sharing() alone"
        )
        nothing = torch.zeros(1, 1, 1, 1, device=self.ids_P.device)
        return {
            "input_ids": self.ids_P[None],
            "position_ids": self.positions_P[None],
            "attention_mask": nothing,
            "prefixes": self,
        }


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading ids two rows have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def prefixes_of(rows: Sequence[Sequence[int]]) -> Prefixes:
    """The distinct prefixes of rows in lexicographic order, in which a row only adds to the one before it."""
    ids: list[int] = []
    positions: list[int] = []
    paths: list[list[int]] = []
    starts: list[int] = []
    for i, row in enumerate(rows):
        start = common(row, rows[i - 1]) if i else 0
        path = (paths[-1][:start] if i else []) + list(range(len(ids), len(ids) + len(row) - start))
        ids += row[start:]
        positions += range(start, len(row))
        paths.append(path)
        starts.append(start)
    buckets, source_P = _attended(paths, starts, len(ids))
    return Prefixes(torch.tensor(ids), torch.tensor(positions), _padded(paths), buckets, source_P)


def _attended(
    paths: Sequence[Sequence[int]], starts: Sequence[int], prefixes: int
) -> tuple[tuple[Bucket, ...], Tensor]:
    """The buckets of rows, and where in them each prefix is attended to: in the row that adds it."""
    buckets, source_P, before = [], torch.zeros(prefixes, dtype=torch.long), 0
    for chosen, start in _alike([len(path) for path in paths], starts):
        bucket = Bucket(_padded([paths[b] for b in chosen]), start)
        width = bucket.index_bT.shape[1] - start
        for i, b in enumerate(chosen):
            added = paths[b][starts[b] :]
            first = before + i * width + starts[b] - start
            source_P[added[0] : added[-1] + 1] = torch.arange(first, first + len(added))
        buckets.append(bucket)
        before += len(chosen) * width
    return tuple(buckets), source_P


def _padded(paths: Sequence[Sequence[int]]) -> Tensor:
    width = max(map(len, paths))
    return torch.tensor([[*path, *[0] * (width - len(path))] for path in paths], dtype=torch.long)


def _alike(lengths: Sequence[int], starts: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Rows that add something, as lists of similar length, each with the token that its queries begin at."""
    adding = [b for b, length in enumerate(lengths) if starts[b] < length]
    late = {b for b in adding if lengths[b] - starts[b] <= _LATE * lengths[b]}
    left = sorted(adding, key=lambda b: (b in late, -lengths[b]))
    while left:
        longest = left[0]
        same = [b for b in left if (b in late) == (longest in late)]
        bucket = [b for b in same if lengths[b] >= _BUCKET * lengths[longest]]
        yield bucket, min(starts[b] for b in bucket) if longest in late else 0
        left = left[len(bucket) :]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefixes: Prefixes | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """transformers' `sdpa`, over the rows that the prefixes come from. Shapes are 1 x heads x P x size."""
    if prefixes is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    outputs = []
    for bucket in prefixes.buckets:
        queries = _rows(query, bucket.index_bT[:, bucket.start :])
        keys, values = _rows(key, bucket.index_bT), _rows(value, bucket.index_bT)
        attended, _ = sdpa_attention_forward(module, queries, keys, values, bucket.mask, **settings)
        outputs.append(attended.flatten(0, 1))
    return torch.cat(outputs).index_select(0, prefixes.source_P)[None], None


def _rows(x: Tensor, index_bT: Tensor) -> Tensor:
    """1 x heads x P x size as b x heads x T x size."""
    flat = x[0].transpose(0, 1).flatten(1).index_select(0, index_bT.flatten())
    return flat.view(*index_bT.shape, x.shape[1], -1).transpose(1, 2)


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


@contextmanager
def sharing(*models: PreTrainedModel | None) -> Iterator[None]:
    """Lets models take `Prefixes` inside, in forward and backward passes; all else they do as before."""
    found = {model: model.config._attn_implementation for model in models if model is not None}
    for model in found:
        model.set_attn_implementation(_ATTENTION)
    try:
        yield
    finally:
        for model, attention in found.items():
            model.set_attn_implementation(attention)


def allowed(setting: Share, model: PreTrainedModel) -> Share:
    """`grpo.share_prompts` where the model can, else False. Raises ConfigError where it must and cannot."""
    if setting and _can_share(model):
        return setting
    if setting is True:
        raise ConfigError(
            f"grpo.share_prompts=true: not with the attention of {type(model).__name__}; "
            "mend: grpo.share_prompts=auto"
        )
    return False


def _can_share(model: PreTrainedModel) -> bool:
    """Whether attention is `sdpa`, causal and over all that was before; also tried, on four tokens."""
    config = model.config.get_text_config(decoder=True)
    others = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    plain = not others and getattr(config, "sliding_window", None) is None
    switches = model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation()
    return plain and switches and _agrees(model)


def _agrees(model: PreTrainedModel) -> bool:
    """Whether two rows with one prefix come out as they do one by one."""
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    rows, was_training = [[0, 1, 2], [0, 1, 3]], model.training
    prefixes = prefixes_of(rows).to(model.device)
    model.train(False)
    with torch.no_grad(), sharing(model):
        expected_BTH = decoder(input_ids=torch.tensor(rows, device=model.device), use_cache=False)[0]
        hidden_PH = decoder(**prefixes.inputs(model), use_cache=False)[0][0]
    model.train(was_training)
    return torch.allclose(hidden_PH[prefixes.index_BT], expected_BTH, rtol=0.02, atol=0.02)
