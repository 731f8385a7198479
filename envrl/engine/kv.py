"""Keys and values of every live episode, and attention over them for one packed forward pass.

A pass feeds the model one sequence of N tokens in which all rows lie one after the other: first those
that feed a single token each, then those that feed several. Nothing is padded outside attention, and
one pass serves turns that begin and turns that go on.

Axes: N tokens of a pass, M rows of a block, T the most tokens that one of them feeds, L cached positions,
H heads, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import add

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_BLOCK = 64
"""The length of the storage grows in multiples of this."""

_SMALL = 64 << 20
"""Bytes that are kept for the next episodes: fresh pages cost a small model a tenth of its time."""


class KVCache:
    """Storage of shape layers x slots x K x L x D, one tensor for keys and one for values.

    It is made at the first pass, when the model shows the shapes, and only grows until it is freed.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._slots = 0
        self._length = 0
        self._tensors: tuple[Tensor, Tensor] | None = None

    def reserve(self, slots: int, length: int) -> None:
        """Makes room for so many slots of so many positions."""
        if slots <= self._slots and length <= self._length:
            return
        if slots > self._slots:
            self._slots = max(slots, self._slots * 3 // 2)
        if length > self._length:
            self._length = -(-max(length, self._length * 3 // 2) // _BLOCK) * _BLOCK
        if self._tensors is not None:
            keys, values = self._tensors
            self._tensors = self._grown(keys), self._grown(values)

    def move(self, old: Sequence[int], new: Sequence[int], length: int) -> None:
        """Copies the first positions of some slots over those of others, all at once."""
        if self._tensors is None:
            return
        taken = set(new)
        for tensor in self._tensors:
            part = tensor[:, :, :, :length]
            # row by row is faster than by index; what another move overwrites is set aside first
            sources = [part[:, place].clone() if place in taken else part[:, place] for place in old]
            for place, source in zip(new, sources, strict=True):
                part[:, place].copy_(source)

    def layer(self, index: int, keys_NKD: Tensor, values_NKD: Tensor) -> tuple[Tensor, Tensor]:
        """Storage of one layer; new keys and values show what it has to look like."""
        if self._tensors is None:
            self._tensors = self._made(keys_NKD), self._made(values_NKD)
        return self._tensors[0][index], self._tensors[1][index]

    def clear(self) -> None:
        """Frees the memory."""
        self._slots = self._length = 0
        self._tensors = None

    def rest(self) -> None:
        """Frees the memory when nothing in it is needed, unless that is too little to be worth it."""
        if self._tensors is not None and sum(tensor.nbytes for tensor in self._tensors) > _SMALL:
            self.clear()

    def _made(self, like_NKD: Tensor) -> Tensor:
        # zeros: what was never written is masked, but 0 x nan would still be nan
        _, heads, size = like_NKD.shape
        return like_NKD.new_zeros(self.layers, self._slots, heads, self._length, size)

    def _grown(self, tensor: Tensor) -> Tensor:
        layers, slots, heads, length, size = tensor.shape
        grown = tensor.new_zeros(layers, self._slots, heads, self._length, size)
        grown[:, :slots, :, :length] = tensor
        return grown


class Pass:
    """What one forward pass feeds, and where its keys and values go.

    Row i lies in slot i, has `cached[i]` positions stored and feeds `counts[i]` tokens; the first `singles`
    rows feed one token each. They are their own block of attention, so that one long prompt does not
    make every row as long.
    """

    def __init__(
        self,
        cache: KVCache,
        tokens: list[int],
        *,
        cached: list[int],
        counts: list[int],
        singles: int,
        device: torch.device,
    ) -> None:
        self.cache = cache
        self.layers: set[int] = set()
        """Layers that attended so far."""
        self.last = [end - 1 for end in accumulate(counts)]
        """Index of each row's last token among the N."""
        positions, rows = cached[:singles], list(range(singles))
        for row in range(singles, len(counts)):
            positions += range(cached[row], cached[row] + counts[row])
            rows += [row] * counts[row]
        packed_3N = torch.tensor([tokens, positions, rows]).to(device)
        self.ids_1N, self.positions_1N, self._rows_N = packed_3N[:1], packed_3N[1:2], packed_3N[2]
        edges = [0, singles, len(counts)]
        self._blocks = [
            _Block(start, cached[start:end], counts[start:end], device)
            for start, end in pairwise(edges)
            if start < end
        ]

    def attend(
        self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float
    ) -> Tensor:
        """Stores a layer's new keys and values, and attends to all that each row has: N x H x D."""
        self.layers.add(layer)
        keys, values = self.cache.layer(layer, key_NKD, value_NKD)
        keys[self._rows_N, :, self.positions_1N[0]] = key_NKD
        values[self._rows_N, :, self.positions_1N[0]] = value_NKD
        parts = [block.attend(query_NHD, keys, values, scale) for block in self._blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class _Block:
    """Neighbouring rows that attend together, each padded to the most tokens that one of them feeds."""

    def __init__(self, start: int, cached: list[int], counts: list[int], device: torch.device) -> None:
        self.rows = slice(start, start + len(counts))
        self.width = max(counts)
        positions_MT = torch.tensor(cached)[:, None]
        if self.width > 1:
            counts_M1 = torch.tensor(counts)[:, None]
            steps_T = torch.arange(self.width)
            step_MT = torch.minimum(steps_T, counts_M1 - 1)  # padding repeats the row's last token
            positions_MT = positions_MT + step_MT
            # the rows before this block feed one token each, so its first token's index is `start`
            first_M1 = start + counts_M1.cumsum(0) - counts_M1
            self.spread = (first_M1 + step_MT).flatten().to(device)
            self.gather = (steps_T < counts_M1).flatten().nonzero()[:, 0].to(device)
        # kernels like lengths that are multiples of eight; the storage's length is one
        self.length = -(-max(map(add, cached, counts)) // 8) * 8
        unseen_MTL = torch.arange(self.length) > positions_MT[..., None]
        self.mask_MTL = torch.zeros(unseen_MTL.shape).masked_fill_(unseen_MTL, -torch.inf).to(device)
        self.mask: Tensor | None = None

    def attend(self, query_NHD: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """This block's part of the N. Heads that share keys become further queries: no key is repeated."""
        keys, values = keys[self.rows, :, : self.length], values[self.rows, :, : self.length]
        if self.width == 1 and query_NHD.is_cpu:
            return self._batched(query_NHD[self.rows], keys, values, scale)
        return self._fused(query_NHD, keys, values, scale)

    def _fused(self, query_NHD: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        rows, kv_heads, size = keys.shape[0], keys.shape[1], values.shape[-1]
        packed = query_NHD[self.rows] if self.width == 1 else query_NHD.index_select(0, self.spread)
        query = packed.view(rows, self.width, kv_heads, -1, keys.shape[-1]).permute(0, 2, 3, 1, 4)
        groups = query.shape[2]
        if self.mask is None:
            self.mask = self.mask_MTL.to(query.dtype).repeat(1, groups, 1)[:, None]
        out = scaled_dot_product_attention(
            query.flatten(2, 3), keys, values, attn_mask=self.mask, scale=scale
        )
        out = out.view(rows, kv_heads, groups, self.width, size).permute(0, 3, 1, 2, 4)
        out = out.reshape(rows * self.width, -1, size)
        return out if self.width == 1 else out.index_select(0, self.gather)

    def _batched(self, query_MHD: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """One query per head: on a CPU, two products take two thirds of the fused kernel's time."""
        rows, kv_heads, size = keys.shape[0], keys.shape[1], values.shape[-1]
        if self.mask is None:
            self.mask = self.mask_MTL.to(query_MHD.dtype).repeat_interleave(kv_heads, 0)
        query = query_MHD.reshape(rows * kv_heads, -1, keys.shape[-1])
        scores = torch.baddbmm(self.mask, query, keys.flatten(0, 1).mT, alpha=scale)
        weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
        return torch.bmm(weights, values.flatten(0, 1)).view(rows, -1, size)
