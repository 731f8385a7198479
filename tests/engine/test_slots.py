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


def test_eviction_spares_who_runs_and_who_is_about_to_be_copied():
    slots = Slots()
    for token, (name, length) in enumerate([("donor", 20), ("short", 9), ("long", 30)]):
        slot = slots.seat(name, [token] * length)
        slot.busy, slot.cached = False, length
    assert slots.seat("heir", [0] * 15).cached == 14
    assert slots.evict(3)
    assert "short" not in slots
    assert not slots.evict(1, but="long")
    assert slots.evict(2)
    assert "donor" in slots
    assert "heir" in slots


def test_packing_closes_gaps():
    slots = Slots()
    seated = {name: slots.seat(name, [index]) for index, name in enumerate("abcd")}
    slots.free("b")
    moved = slots.pack()
    assert [(old, slot.place) for old, slot in moved] == [(3, 1)]
    assert slots.places == [seated["a"], seated["d"], seated["c"]]
