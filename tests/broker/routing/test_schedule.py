"""Messages that wait for their time: in what order they are shown, and delivered before it."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from pollux.config.address_settings import AddressSettings
from pollux.routing.reference import MessageReference
from pollux.routing.schedule import Schedule, Times

from .bench import Bench, make_message

TIMES = st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=40)


def filled(bench: Bench, times: list[tuple[int, bool]]) -> Schedule:
    """Messages by number with their times; those marked are on disk only."""
    schedule = Schedule()
    for number, (at, cold) in enumerate(times):
        if cold:
            schedule.add_cold(number, at, 4)
        else:
            schedule.add(MessageReference(make_message(number), bench.queue), at, -1)
    return schedule


@given(TIMES, st.integers(0, 50))
def test_they_are_shown_by_their_times_and_those_of_one_time_as_they_came(
    times: list[tuple[int, bool]], limit: int
) -> None:
    schedule = filled(Bench(), times)
    expected = sorted((at, number) for number, (at, _) in enumerate(times))
    shown = list(islice(schedule.in_order(), limit))
    assert [(at, number) for at, number, _ in shown] == expected[:limit]
    assert all((reference is None) is times[number][1] for _, number, reference in shown)
    assert len(schedule) == len(times), "looking changes nothing"
    assert schedule.next_due() == (expected[0][0] if expected else 0)


@given(TIMES, st.sets(st.integers(0, 40)))
def test_who_looks_may_go_on_while_some_are_taken_out(times: list[tuple[int, bool]], ids: set[int]) -> None:
    schedule = filled(Bench(), times)
    looking = schedule.in_order()
    first = list(islice(looking, 1))
    taken = [reference.message.id for reference, _ in schedule.hot.take(ids)]
    taken += [number for _, number in schedule.cold.take(ids)]
    assert set(taken) == ids & set(range(len(times)))
    left = [(at, number) for at, number, _ in schedule.in_order()]
    assert left == sorted((at, number) for number, (at, _) in enumerate(times) if number not in ids)
    shown = [number for _, number, _ in (*first, *looking)]
    assert sorted(shown) == sorted({number for _, number in left} | {number for _, number, _ in first})
    assert [number for number in range(len(times)) if number in schedule] == sorted(number for _, number in left)


@given(st.lists(st.tuples(st.sampled_from(["add", "pop", "take", "shed"]), st.integers(0, 600), st.integers(1, 5))))
def test_whatever_is_put_in_and_taken_out_the_first_one_due_is_next(steps: list[tuple[str, int, int]]) -> None:
    times, model = Times[int](), dict[int, tuple[int, int]]()
    for order, (what, number, at) in enumerate(steps):
        if what == "add":
            # As a message whose next attempt is delayed again: it has been taken out before.
            for each in range(number, number + 300 * (at == 5) + 1):
                times.take({each})
                times.add(at, order * 1000 + each, each, each)
                model[each] = (at, order * 1000 + each)
        elif what == "pop":
            due = [each for each in model if model[each][0] <= at]
            expected = min(due, key=lambda each: model[each]) if due else None
            assert times.pop(at) == expected
            model.pop(expected, None)  # type: ignore[arg-type]
        elif what == "take":
            taken = sorted((each for each in model if each >= number), key=lambda each: model[each])
            assert times.take(range(number, 1 << 64)) == taken
            for each in taken:
                del model[each]
        else:
            shed = times.shed(at)
            assert len(shed) == min(at, len(model))
            for each in shed:
                del model[each]
        assert len(times) == len(model)
        assert times.soonest == min(model.values(), default=(0, 0))[0]
        assert [number for _, _, number, _ in times.in_order()] == sorted(model, key=lambda each: model[each])


def test_what_was_taken_out_is_not_kept_for_ever() -> None:
    """Breaks when entries that are passed over are only given back when their time comes."""
    times = Times[bytes]()
    for number in range(1000):
        times.add(1 << 40, number, number, b"")
        times.take({number})
    assert len(times._heap) <= 300


def test_those_delivered_before_their_time_are_behind_what_waits() -> None:
    bench = Bench()
    bench.add(2, now=100, deliver_at=300)
    bench.add(1, now=100)
    hot, cold = bench.queue.deliver({2, 3, 99}, 100)
    assert [reference.message.id for reference in hot] == [2]
    assert cold == []
    assert bench.queue.scheduled == 1
    consumer = bench.attach()
    bench.dispatch(100)
    assert consumer.ids == [3, 2]
    assert bench.queue.due(300) == 1
    bench.dispatch(300)
    assert consumer.ids == [3, 2, 1]


def test_one_whose_next_attempt_is_delayed_goes_back_to_its_place() -> None:
    bench = Bench(AddressSettings(redelivery_delay=1000))
    consumer = bench.attach()
    bench.add(2)
    bench.dispatch()
    first, second = consumer.take()
    bench.queue.release([first], failed=True, now=100)
    bench.queue.release([second], failed=False, now=100)
    bench.queue.deliver({1}, 100)
    assert first.deliver_at == 0
    bench.dispatch(100)
    assert consumer.ids == [1, 2]


def test_one_that_expired_meanwhile_is_delivered_to_nobody() -> None:
    bench = Bench()
    bench.add(1, now=100, deliver_at=300, expiration=200)
    bench.queue.deliver({1}, 250)
    assert bench.waiting_ids() == []
    assert [reference.message.id for reference in bench.queue.expired(250)] == [1]


def test_those_on_disk_only_wait_there_for_a_consumer() -> None:
    bench = Bench()
    bench.queue.restore(4, [1, 2], None, {1: 300, 2: 400})
    assert bench.queue.deliver({2}, 100) == ([], [2])
    assert (bench.queue.scheduled, bench.queue.cold) == (1, 2)
    assert bench.queue.next_due() == 300
