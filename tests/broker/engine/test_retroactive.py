"""Retroactive addresses on a real store: what a queue gets of the messages that were sent before it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.engine.conftest import Office, Receiver, message
from pollux.config.address_settings import AddressFullPolicy, AddressSetting
from pollux.config.addresses import Divert
from pollux.config.resolve import AddressSettingsResolver
from pollux.engine.retroactive import keeper_of, ring_of
from pollux.errors import AddressFullError
from pollux.message import RoutingType
from pollux.node.engine import make_retroactive

if TYPE_CHECKING:
    from pollux.routing.queue import Queue

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


async def restored(office: Office) -> None:
    retroactive = make_retroactive(office.post)
    office.post.keep_last(retroactive)
    await retroactive.restore(office.post.unfinished)


async def opened(office: Office, count: int = 3, match: str = "prices.#") -> None:
    office.settings(match, retroactive_message_count=count)
    await office.open()
    await restored(office)


async def reopened(office: Office) -> None:
    await office.reopen()
    await restored(office)


def bodies(queue: Queue) -> list[bytes]:
    return [each.message.data for each in queue.browse().next(1000)]


async def late(office: Office, name: str = "late", address: str = "prices.eur", **attributes: object) -> list[bytes]:
    """Make a queue; what is in it."""
    queue = office.queue(name, address, **{"routing_type": MULTICAST, **attributes})
    await office.settle()
    return bodies(queue)


async def test_a_queue_that_comes_later_gets_the_last_messages(office: Office) -> None:
    await opened(office)
    await office.send(*(b"%d" % number for number in range(5)), address="prices.eur")
    assert await late(office) == [b"2", b"3", b"4"]
    await office.send(b"5", address="prices.eur")
    assert bodies(office.post.queue("late")) == [b"2", b"3", b"4", b"5"]
    assert await late(office, "later") == [b"3", b"4", b"5"]
    assert await late(office, "elsewhere", "prices.usd") == []
    await office.send(b"other", address="orders.eur")
    assert await late(office, "orders", "orders.eur") == []


async def test_they_are_there_after_a_restart_and_come_before_what_is_sent_then(office: Office) -> None:
    await opened(office)
    await office.send(*(b"%d" % number for number in range(5)), address="prices.eur")
    await office.send(b"in memory", address="prices.eur", durable=False)
    await reopened(office)
    office.queue("late", "prices.eur", routing_type=MULTICAST)
    await office.send(b"5", address="prices.eur")
    await office.settle()
    assert bodies(office.post.queue("late")) == [b"3", b"4", b"5"]
    assert await late(office, "later") == [b"3", b"4", b"5"]


async def test_a_copy_is_what_the_message_was(office: Office) -> None:
    await opened(office)
    await office.send(
        b"a", address="prices.eur", priority=7, group="g", expiration=office.wall_ms() + 100_000, routing_type=MULTICAST
    )
    await office.send(b"b", address="prices.eur", expiration=office.wall_ms() + 1_000)
    office.now = 2_000
    queue = office.queue("late", "prices.eur", routing_type=MULTICAST)
    await office.settle()
    (reference,) = queue.browse().next(10)
    found = reference.message
    assert (found.address, found.priority, found.group, found.routing_type) == ("prices.eur", 7, "g", MULTICAST)
    assert found.expiration > office.wall_ms()
    assert found.annotations is None
    assert office.storage.damage == []


async def test_priorities_do_not_decide_what_is_kept(office: Office) -> None:
    await opened(office, 2)
    for body, priority in ((b"urgent", 9), (b"a", 1), (b"b", 5)):
        await office.send(body, address="prices.eur", priority=priority)
    assert sorted(await late(office)) == [b"a", b"b"]


async def test_a_queue_gets_what_it_would_have_got(office: Office) -> None:
    """By routing type, filter, and whose messages it does not take."""
    await opened(office, 10)
    for body, kind in ((b"any", None), (b"one", ANYCAST), (b"all", MULTICAST)):
        await office.send(body, address="prices.eur", routing_type=kind, priority=5, origin=len(body))
    await office.send(b"mine", address="prices.eur", origin=7)
    assert await late(office, "m") == [b"any", b"all", b"mine"]
    # The address had an ANYCAST queue of its own name made by the message that asked for one: it was there before.
    assert await late(office, "a", routing_type=ANYCAST) == [b"any", b"one", b"mine"]
    assert await late(office, "f", selector="JMSPriority = 5") == [b"any", b"all"]
    assert await late(office, "n", no_local_origin=7) == [b"any", b"all"]
    assert await late(office, "off", enabled=False) == []


async def test_a_queue_of_a_pattern_gets_those_of_all_addresses_in_their_order(office: Office) -> None:
    await opened(office, 2)
    for number, name in enumerate(("eur", "usd", "eur", "eur", "usd", "chf")):
        await office.send(b"%d" % number, address=f"prices.{name}")
    assert await late(office, "all", "prices.*") == [b"1", b"2", b"3", b"4", b"5"]
    office.post.space.admits = lambda _queue, name: name != "prices.usd"
    assert await late(office, "some", "prices.#") == [b"2", b"3", b"5"]


async def test_what_is_on_its_way_to_the_disk_comes_too_and_once(office: Office) -> None:
    await opened(office)
    await office.send(b"before", address="prices.eur")
    office.post.send(message(b"on its way", "prices.eur"))
    queue = office.queue("late", "prices.eur", routing_type=MULTICAST)
    office.post.send(message(b"after", "prices.eur"))
    await office.settle()
    assert sorted(bodies(queue)) == [b"after", b"before", b"on its way"]


async def test_what_is_kept_takes_no_part_in_the_limits_of_its_address(office: Office) -> None:
    office.settings("prices.#", max_size_messages=2, address_full_policy=AddressFullPolicy.FAIL)
    await opened(office, 5)
    await office.send(b"a", b"b", b"c", b"d", address="prices.eur")
    office.queue("late", "prices.eur", routing_type=MULTICAST)
    await office.settle()
    assert office.count("late") == 4
    with pytest.raises(AddressFullError):
        await office.send(b"e", address="prices.eur")


async def test_an_exclusive_divert_leaves_nothing_to_keep(office: Office) -> None:
    office.configuration = replace(
        office.configuration, diverts=(Divert("d", "prices.eur", "prices.other", exclusive=True),)
    )
    await opened(office)
    await office.send(b"a", address="prices.eur")
    assert await late(office) == []
    assert await late(office, "there", "prices.other") == [b"a"]


async def test_a_transaction_keeps_what_it_commits(office: Office) -> None:
    await opened(office)
    for commit in (False, True):
        tx = office.post.begin(0)
        office.post.send(message(b"committed" if commit else b"not", "prices.eur"), tx)
        (office.post.commit if commit else office.post.rollback)(tx)
    await office.stable()
    assert await late(office) == [b"committed"]


async def test_what_a_crash_cut_off_is_kept_no_more_than_it_was_sent(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(office)
    office.queue("early", "prices.eur", routing_type=MULTICAST)
    await office.send(b"whole", address="prices.eur")
    monkeypatch.setattr(office.storage, "append_commit", lambda _tx: None)
    await office.send(b"cut", address="prices.eur")
    await reopened(office)
    assert (office.count("early"), await late(office)) == (1, [b"whole"])


async def test_the_count_can_change_and_the_address_can_go(office: Office) -> None:
    await opened(office)
    await office.send(b"a", b"b", b"c", address="prices.eur")
    for count, expected in ((1, [b"d"]), (0, [])):
        setting = AddressSetting("prices.#", {"retroactive_message_count": count})
        office.configuration = replace(office.configuration, address_settings=(setting,))
        office.post.space.reload_settings(AddressSettingsResolver(office.configuration).of)
        office.post.address_manager.reload_settings()
        await office.send(b"d", address="prices.eur")
        assert await late(office, f"late-{count}") == expected
    assert office.post.space.queue(ring_of("prices.eur", MULTICAST)) is not None
    office.post.address_manager.delete_address("prices.eur", force=True)
    assert office.post.space.address(keeper_of("prices.eur")) is None
    assert office.post.space.queue(ring_of("prices.eur", MULTICAST)) is None


async def test_an_address_with_something_kept_is_not_deleted_automatically(office: Office) -> None:
    await opened(office)
    await office.send(b"a", address="prices.eur")
    await office.send(b"a", address="orders.eur")
    office.now = 10_000_000
    office.post.address_manager.reap()
    await office.settle()
    assert office.post.address("prices.eur") is not None
    assert await late(office) == [b"a"]


async def test_a_full_disk_keeps_no_queue_from_being_made(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened(office)
    await office.send(b"a", address="prices.eur")
    monkeypatch.setattr(office.storage, "full", True)
    assert await late(office) == []


async def test_the_brokers_own_queues_get_nothing_and_are_kept_from_nobody(office: Office) -> None:
    await opened(office, match="#")
    receiver = Receiver()
    await office.send(b"a", address="prices.eur")
    assert {each.name for each in office.post.space.addresses if "retro" in each.name} == {keeper_of("prices.eur")}
    office.queue("late", "prices.eur", routing_type=MULTICAST)
    office.post.attach(office.post.queue("late"), receiver)
    await receiver.wait(1)
    office.post.acknowledge(receiver.got)
    await office.settle()
    assert (office.count("late"), office.count(ring_of("prices.eur", MULTICAST))) == (0, 1)


async def test_a_kept_address_goes_after_the_time_that_is_set_for_unused_ones(office: Office) -> None:
    """Else each name that anybody ever sent to stays for good where the settings are for all names."""
    office.settings("#", retroactive_message_count=3, auto_delete_addresses_delay=60_000)
    await opened(office)
    await office.send(b"a", address="prices.eur")
    for later, there in ((59_000, True), (10_000_000, False)):
        office.now = later
        office.post.address_manager.reap()
        await office.settle()
        assert (office.post.address("prices.eur") is not None) is there
    assert office.post.space.address(keeper_of("prices.eur")) is None


@pytest.mark.parametrize("crash", ["before its copies", "behind them"])
async def test_a_queue_that_a_crash_left_while_it_was_made_gets_what_was_kept_once(
    office: Office, crash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its binding is on disk before anything of it is in the journal."""
    await opened(office)
    await office.send(b"1", b"2", address="prices.eur")
    manager = office.post.address_manager
    if crash == "before its copies":
        monkeypatch.setattr(manager, "retention", None)
    monkeypatch.setattr(manager._records, "note_queue", lambda _queue: None)
    office.queue("late", "prices.eur", routing_type=MULTICAST)
    await office.settle()
    monkeypatch.undo()
    for _ in range(2):
        await reopened(office)
        await office.settle()
        assert office.post.message_count(office.post.queue("late")) == 2
    receiver = Receiver()
    office.post.attach(office.post.queue("late"), receiver)
    await receiver.wait(2)
    assert receiver.bodies == [b"1", b"2"]
    office.post.acknowledge(receiver.got)
    await office.settle()
    await reopened(office)
    assert office.post.message_count(office.post.queue("late")) == 0
