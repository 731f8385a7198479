"""Keys and values of every live episode, and attention over them for one packed forward pass.

A pass feeds the model one sequence of N tokens in which all rows lie one after the other: first those
that feed a single token each, then those that feed several. Nothing is padded outside attention, and
one pass serves turns that begin and turns that go on.

Axes: N tokens of a pass, M rows of a block, T the most tokens that one of them feeds, L cached positions,
H heads, K key-value heads, D head size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import add

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_BLOCK = 64
"""The length of the storage grows in multiples of this."""

_SMALL = 64 << 20
"""Bytes that are kept for the next episodes: fresh pages cost a small model a tenth of its time."""

_UNBOUNDED = 1 << 62


def spare_bytes(device: torch.device) -> int:
    """What a cache may take where nobody said: half of what a GPU has left, a quarter of a CPU's memory.

    The latter is of all memory, not of what is free, so that the same run seats the same requests.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (free + unused) // 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class KVCache:
    """Storage of shape slots x K x L x D, in every layer one tensor for keys and one for values.

    A layer's is made when the model first shows its shape, and only grows until it is freed; layers grow one
    after the other, so that but one of them is ever held twice.
    """

    def __init__(self, sizes: dict[int, int], budget: Callable[[], int] = lambda: _UNBOUNDED) -> None:
        self._sizes = sizes
        """Bytes of a position, by layer: as far as any cache of this model has seen."""
        self._budget = budget
        self._most: int | None = None
        """The budget in bytes; None where it is to be asked for, because the memory served others since."""
        self._slots = 0
        self._length = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """The memory that is held now."""
        return sum(keys.nbytes + values.nbytes for keys, values in self._layers.values())

    @property
    def positions(self) -> int | None:
        """How many fit in all; None before a model has shown what one takes."""
        position_bytes = sum(self._sizes.values())
        # not kept: by the next rollout it may be another
        most = self._budget() if self._most is None else self._most
        return most // position_bytes if position_bytes else None

    def room(self, length: int) -> int:
        """How many slots of so many positions may be reserved; one may be in any case."""
        if self._most is None:
            self._most = self._budget()
        slot_bytes = sum(self._sizes.values()) * _padded(max(length, self._length))
        return max(self._most // max(slot_bytes, 1), 1)

    def reserve(self, slots: int, length: int) -> None:
        """Makes room for so many slots of so many positions; what lies in later slots may be lost."""
        if slots <= self._slots and length <= self._length:
            return
        if length > self._length:
            roomy = _padded(max(length, self._length * 3 // 2))
            self._length = roomy if slots <= self.room(roomy) else _padded(length)
        wished = max(slots, self._slots * 3 // 2) if slots > self._slots else self._slots
        self._slots = max(slots, min(wished, self.room(self._length)))
        for index, (keys, values) in self._layers.items():
            self._layers[index] = self._grown(keys), self._grown(values)

    def move(self, old: Sequence[int], new: Sequence[int], length: int) -> None:
        """Copies the first positions of some slots over those of others, all at once."""
        taken = set(new)
        # a place beyond the storage was only just given away: there is nothing in it
        moves = [(source, target) for source, target in zip(old, new, strict=True) if source < self._slots]
        for tensor in (tensor for pair in self._layers.values() for tensor in pair):
            part = tensor[:, :, :length]
            # row by row is faster than by index; what another move overwrites is set aside first
            rows = [part[source].clone() if source in taken else part[source] for source, _ in moves]
            for (_, target), row in zip(moves, rows, strict=True):
                part[target].copy_(row)

    def layer(self, index: int, keys_NKD: Tensor, values_NKD: Tensor) -> tuple[Tensor, Tensor]:
        """Storage of one layer; new keys and values show what it has to look like."""
        if index not in self._layers:
            self._sizes[index] = keys_NKD[0].nbytes + values_NKD[0].nbytes
            self._layers[index] = self._made(keys_NKD), self._made(values_NKD)
        return self._layers[index]

    def clear(self) -> None:
        """Frees the memory."""
        self._slots = self._length = 0
        self._layers = {}
        self._most = None

    def rest(self) -> None:
        """Frees the memory when nothing in it is needed, unless that is too little to be worth it."""
        self._most = None
        if self.nbytes > _SMALL:
            self.clear()

    def _made(self, like_NKD: Tensor) -> Tensor:
        # zeros: what was never written is masked, but 0 x nan would still be nan
        _, heads, size = like_NKD.shape
        return like_NKD.new_zeros(self._slots, heads, self._length, size)

    def _grown(self, tensor: Tensor) -> Tensor:
        slots, heads, length, size = tensor.shape
        grown = tensor.new_zeros(self._slots, heads, self._length, size)
        grown[:slots, :, :length] = tensor[: self._slots]
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
        # the mask is the one large thing here: it is made where it is needed
        unseen_MTL = torch.arange(self.length, device=device) > positions_MT.to(device)[..., None]
        self.mask_MTL = torch.zeros(unseen_MTL.shape, device=device).masked_fill_(unseen_MTL, -torch.inf)
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


def _padded(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK
