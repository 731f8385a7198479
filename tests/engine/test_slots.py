from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envrl.engine.slots import Slots, common_prefix


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix(a, b):
    shared = common_prefix(a, b)
    assert a[:shared] == b[:shared]
    assert shared == min(len(a), len(b)) or a[shared] != b[shared]


@given(st.data())
def test_arranged_slots_lie_in_their_blocks_and_nobody_is_lost(data):
    slots = Slots()
    live = {str(index): slots.seat(str(index), [index]) for index in range(data.draw(st.integers(1, 12)))}
    for name in data.draw(st.sets(st.sampled_from(sorted(live)))):
        slots.free(name)
        del live[name]
    for _ in range(3):
        order = data.draw(st.permutations(sorted(live)))
        first, second = sorted(data.draw(st.tuples(st.integers(0, len(order)), st.integers(0, len(order)))))
        before = {slot: slot.place for slot in live.values()}
        blocks = [live[name] for name in order[:first]], [live[name] for name in order[first:second]]
        moves = slots.arrange(*blocks)
        assert {slot.place for slot in blocks[0]} == set(range(first))
        assert {slot.place for slot in blocks[1]} == set(range(first, second))
        assert {slot: old for old, slot in moves} == {s: p for s, p in before.items() if s.place != p}
        assert all(slots.places[slot.place] is slot for slot in live.values())
        assert len({slot.place for slot in live.values()}) == len(live)
