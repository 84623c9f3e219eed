"""Finding and removing ids without looking at all of them gives what looking at all of them gives."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from pollux.store.ids import among, ascending, shared, without

SMALL = st.integers(0, 60)
#: Mostly in order, as they are in queues; some after others that are larger, none twice.
IDS = st.tuples(st.sets(st.integers(0, 400)), st.lists(st.integers(401, 500), unique=True)).map(
    lambda parts: array("Q", [*sorted(parts[0]), *parts[1], 600, *range(501, 505)])
)


@given(ids=IDS, known=st.integers(0, 5))
def test_how_many_ascend(ids: array[int], known: int) -> None:
    whole = ascending(ids, 0)
    assert list(ids[:whole]) == sorted(set(ids[:whole]))
    assert whole == len(ids) or ids[whole] <= ids[whole - 1]
    assert ascending(ids, min(known, whole)) == whole
    assert ascending(ids, whole) == whole, "where the order ends it ends again"


@given(ids=IDS, wanted=st.sets(st.integers(0, 700), max_size=40), part=st.floats(0, 1))
def test_some_of_them(ids: array[int], wanted: set[int], part: float) -> None:
    known = int(ascending(ids, 0) * part)
    assert among(ids, known, wanted) == {one for one in ids if one in wanted}
    kept, still = without(ids, known, wanted)
    assert list(kept) == [one for one in ids if one not in wanted]
    assert still <= ascending(kept, 0)
    assert still == len([one for one in ids[:known] if one not in wanted])


@given(queues=st.dictionaries(SMALL, st.dictionaries(st.integers(0, 9), st.sets(SMALL)), max_size=4))
def test_how_many_queues_hold_a_message(queues: dict[int, dict[int, set[int]]]) -> None:
    # In one queue a message has one priority.
    found: dict[int, dict[int, array[int]]] = {}
    for queue_id, priorities in queues.items():
        seen: set[int] = set()
        for priority, ids in priorities.items():
            found.setdefault(queue_id, {})[priority] = array("Q", sorted(ids - seen))
            seen |= ids
    counts: dict[int, int] = {}
    for priorities_of in found.values():
        for some in priorities_of.values():
            for one in some:
                counts[one] = counts.get(one, 0) + 1
    assert shared(found) == {one: count for one, count in counts.items() if count > 1}
