"""Whose keys and values are stored where: one slot per live episode.

Rows of a forward pass read the cache without copying it, so they must lie side by side: before each
pass the slots that take part move to the front.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

_WORTH = 8
"""Shared tokens below which copying is not worth a pass of waiting."""


@dataclass(slots=True, eq=False)
class Slot:
    """One episode's part of the cache."""

    place: int
    """Its index in the storage."""
    key: tuple[list[int], int]
    """The prompt it was opened with, and a number that makes it unique."""
    ids: list[int]
    """The conversation; the very list that a running request appends to."""
    cached: int = 0
    """Leading ids whose keys and values are stored."""
    busy: bool = False
    """A request of this episode is running."""


class Slots:
    """The slots of all live episodes, found by episode name, by place and by shared prefix."""

    def __init__(self) -> None:
        self.places: list[Slot | None] = []
        self.copies: dict[Slot, Slot] = {}
        """Slots whose first `cached` ids are still to be copied, from these."""
        self._episodes: dict[str, Slot] = {}
        self._sorted: list[tuple[tuple[list[int], int], Slot]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._episodes)

    def __contains__(self, episode: str) -> bool:
        return episode in self._episodes

    def seat(self, episode: str, ids: list[int]) -> Slot | None:
        """The episode's slot, holding as much of `ids` as is known; None where waiting a pass pays.

        At least one id is left to feed, because a pass over nothing yields no logits.
        """
        slot = self._episodes.get(episode)
        if slot is None:
            return self._open(episode, ids)
        if slot.busy:
            return None
        slot.cached = min(common_prefix(slot.ids, ids), slot.cached, len(ids) - 1)
        slot.ids, slot.busy = ids, True
        return slot

    def free(self, episode: str) -> None:
        """Forgets an episode."""
        slot = self._episodes.pop(episode, None)
        if slot is None:
            return
        self._sorted.pop(bisect(self._sorted, slot.key, key=lambda entry: entry[0]) - 1)
        self.places[slot.place] = None
        self._trim()

    def evict(self, room: int, *, but: str = "") -> bool:
        """Forgets idle episodes, the shortest first, until `room` slots are left; False where that fails."""
        kept = {*self.copies.values(), self._episodes.get(but)}
        idle = [e for e in self._episodes.items() if not e[1].busy and e[1] not in kept]
        excess = len(self._episodes) - room
        if excess > 0:
            for episode, _ in sorted(idle, key=lambda entry: entry[1].cached)[:excess]:
                self.free(episode)
        return len(self._episodes) <= room

    def pack(self) -> list[tuple[int, Slot]]:
        """Leaves no place empty between others; returns what `arrange` returns."""
        moved = self.arrange([slot for slot in self.places if slot is not None])
        self._trim()
        return moved

    def arrange(self, *blocks: Sequence[Slot]) -> list[tuple[int, Slot]]:
        """Gives the first block the first places, the next block the next ones, in any order inside a block.

        Returns the slots that moved, each with the place it came from.
        """
        moves: dict[Slot, int] = {}
        start = 0
        for block in blocks:
            end = start + len(block)
            movers = [slot for slot in block if not start <= slot.place < end]
            if movers:
                settled = {slot.place for slot in block}
                moves.update(zip(movers, (p for p in range(start, end) if p not in settled), strict=True))
            start = end
        if not moves:
            return []
        self._make_way(moves)
        return self._move(moves)

    def _make_way(self, moves: dict[Slot, int]) -> None:
        """Whoever is in the way takes a place that is left."""
        taken = set(moves.values())
        left = [slot.place for slot in moves if slot.place not in taken]
        movers = set(moves)
        displaced = [s for p in taken if (s := self.places[p]) is not None and s not in movers]
        moves.update(zip(displaced, left, strict=False))

    def _move(self, moves: dict[Slot, int]) -> list[tuple[int, Slot]]:
        moved = [(slot.place, slot) for slot in moves]
        for place, _ in moved:
            self.places[place] = None
        for slot, place in moves.items():
            self.places[place] = slot
            slot.place = place
        return moved

    def _open(self, episode: str, ids: list[int]) -> Slot | None:
        donor, shared = self._donor(ids)
        if donor is not None and donor.cached < shared:
            if donor.busy and shared - donor.cached >= _WORTH:
                return None
            shared = donor.cached
        slot = Slot(self._vacancy(), (list(ids), next(self._serial)), ids, busy=True)
        if donor is not None and shared >= _WORTH:
            slot.cached = shared
            self.copies[slot] = self.copies.get(donor, donor)
        self.places[slot.place] = self._episodes[episode] = slot
        insort(self._sorted, (slot.key, slot), key=lambda entry: entry[0])
        return slot

    def _donor(self, ids: list[int]) -> tuple[Slot | None, int]:
        """The slot that shares the longest prefix: among sorted prompts it stands right beside."""
        here = bisect(self._sorted, (ids, 0), key=lambda entry: entry[0])
        best: tuple[Slot | None, int] = (None, _WORTH - 1)
        for _, slot in self._sorted[max(here - 1, 0) : here + 1]:
            shared = min(common_prefix(slot.ids, ids), len(ids) - 1)
            if shared > best[1]:
                best = (slot, shared)
        return best

    def _trim(self) -> None:
        while self.places and self.places[-1] is None:
            self.places.pop()

    def _vacancy(self) -> int:
        if len(self._episodes) == len(self.places):
            self.places.append(None)
        return self.places.index(None)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, by comparing halves."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
