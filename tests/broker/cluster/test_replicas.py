"""Queue replicas: what is in a queue is in its replica, in that order, whatever breaks meanwhile."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.cluster.bridges.conftest import Site, _Connector
from broker.cluster.connection.conftest import until
from broker.engine.conftest import Receiver, message
from pollux.cluster.replicas.feed import compared
from pollux.cluster.replicas.service import Replicas
from pollux.config.active_passive import ActivePassive
from pollux.errors import InvalidRequestError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pollux.cluster.replicas.queue_replica import QueueReplica


class Place(Site):
    """A broker with replicas."""

    others: dict[int, Site]
    #: Bytes of messages of an address that are too many for memory.
    limit = 20_000

    def __init__(self, directory: Path, number: int) -> None:
        super().__init__(directory, number)
        # Small files, each of which is folded: a message that left memory is read from what was folded.
        self.office.configuration = replace(
            self.office.configuration, journal_file_size=64 << 10, journal_compact_min_files=1
        )

    def bounded(self) -> None:
        """Page what is too much; before it is opened."""
        self.office.settings("#", max_size_bytes=self.limit, page_size_bytes=10_000, max_read_page_bytes=10_000)

    def in_memory(self, name: str) -> int:
        """Bytes of an address that are in memory."""
        return self.post.accounts.get(name).gauge.bytes

    async def open(self) -> None:
        await super().open()
        if self.post.space.queue("orders") is None:
            self.office.queue("orders")
        given = ActivePassive(ha_cluster=False, ha_queue_replication=True, link_maintenance_interval=0.01)
        self.replicas = Replicas(self.office.configuration, given, self.hub, node=self.id, post=self.post)
        self.connected()
        self.replicas.offer(self.hub)
        self.replicas.start()

    def connected(self) -> None:
        """Have all of them connect to the other places of the test."""
        connector: Any = _Connector(self, self.others)
        self.replicas._connector = connector
        for each in self.replicas.all.values():
            each._connector = connector

    async def close(self) -> None:
        """As a process ends: nobody is answered by what is half closed."""
        self.reachable = False
        await self.replicas.stop()
        for link in self.links:
            link.close("the process ends")
        await super().close()

    async def reopen(self) -> None:
        await super().reopen()
        self.reachable = True

    def bodies(self, name: str = "orders") -> list[bytes]:
        return [reference.message.data for reference in self.post.queue(name).iterate()]


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[tuple[Place, Place]]:
    made = Place(tmp_path / "1", 1), Place(tmp_path / "2", 2)
    others: dict[int, Site] = {place.port: place for place in made}
    for place in made:
        place.others = others
        await place.open()
    yield made
    for place in made:
        await place.close()
        assert place.office.failures == []


async def replicate(source: Place, replica: Place) -> QueueReplica:
    await replica.replicas.replicate("orders", f"host:{source.port}", "copy")
    return replica.replicas.all["copy"]


async def same(source: Place, replica: Place) -> None:
    """Wait until the replica has exactly what its source has; in memory or on disk only."""

    def found() -> bool:
        here, there = source.post.queue("orders"), replica.post.queue("copy")
        return source.post.message_count(here) == replica.post.message_count(there) and (
            bool(there.cold or here.cold) or source.bodies() == replica.bodies("copy")
        )

    await until(found)


def test_what_is_compared_keeps_the_order() -> None:
    """Messages that a replica has behind one that it lacks come again."""
    assert compared([1, 2, 3], set()) == ([1, 2, 3], [])
    assert compared([1, 2, 3], {1, 2}) == ([3], [])
    assert compared([2, 3], {1, 2, 3}) == ([], [1])
    missing, drop = compared([1, 2, 3, 4], {1, 3, 4, 7})
    assert (missing, sorted(drop)) == ([2, 3, 4], [3, 4, 7])


@pytest.mark.asyncio
async def test_nobody_else_has_anything_to_do_with_it(places: tuple[Place, Place]) -> None:
    source, replica = places
    source.post.send(message(b"one"))
    await replicate(source, replica)
    await until(lambda: replica.bodies("copy") == [b"one"])
    with pytest.raises(NotPermittedError, match="replica of orders@host:1"):
        replica.post.attach(replica.post.queue("copy"), Receiver())
    with pytest.raises(NotPermittedError, match="replica of orders@host:1"):
        replica.post.send(message(b"stranger", address="copy"))
    with pytest.raises(InvalidRequestError, match="detach it first"):
        await replica.replicas.replicate("others", "host:1", "copy")
    await replica.replicas.detach("copy")
    receiver = Receiver()
    replica.post.attach(replica.post.queue("copy"), receiver)
    (got,) = await receiver.wait(1)
    replica.post.acknowledge([got])
    replica.post.send(message(b"mine", address="copy"))
    (got,) = (await receiver.wait(2))[1:]
    assert got.message.data == b"mine"


@pytest.mark.asyncio
async def test_what_a_consumer_holds_is_in_the_replica(places: tuple[Place, Place]) -> None:
    source, replica = places
    for number in range(3):
        source.post.send(message(b"%d" % number))
    receiver = Receiver(credit=2)
    source.post.attach(source.post.queue("orders"), receiver)
    held = await receiver.wait(2)
    await replicate(source, replica)
    await until(lambda: replica.bodies("copy") == [b"0", b"1", b"2"])
    source.post.acknowledge([held[1]])
    await until(lambda: replica.bodies("copy") == [b"0", b"2"])


@pytest.mark.asyncio
async def test_what_is_on_disk_only_at_the_source_leaves_the_replica(places: tuple[Place, Place]) -> None:
    source, replica = places
    for number in range(5):
        source.post.send(message(b"%d" % number))
    await replicate(source, replica)
    await until(lambda: len(replica.bodies("copy")) == 5)
    await source.reopen()
    await until(lambda: source.replicas.describe()["fed"] and replica.replicas.describe()["replicas"][0]["whole"])
    cold = list(source.post.queue("orders").cold_ids())
    assert len(cold) == 5
    source.post.take_out(source.post.queue("orders"), {cold[0], cold[3]})
    await until(lambda: replica.bodies("copy") == [b"1", b"2", b"4"])
    replica.post.delete_queue("copy")
    await until(lambda: not source.replicas.describe()["fed"])
    assert replica.replicas.describe()["replicas"] == []


@pytest.mark.asyncio
async def test_connections_and_brokers_that_break_change_nothing(places: tuple[Place, Place]) -> None:
    """Each time the replica has what the source has, or has it again soon: with kills in between."""
    source, replica = places
    chosen = random.Random(11)  # noqa: S311  (the same again)
    following = await replicate(source, replica)
    number = 0
    for _ in range(25):
        for _ in range(chosen.randrange(30)):
            number += 1
            source.post.send(message(b"%d" % number, durable=bool(chosen.randrange(5))))
        await until(lambda: not source.post.in_flight(source.post.queue("orders")))
        ids = [reference.message.id for reference in source.post.queue("orders").iterate()]
        ids += source.post.queue("orders").cold_ids()
        source.post.take_out(source.post.queue("orders"), set(chosen.sample(ids, len(ids) // 2)))
        match chosen.randrange(5):
            case 0:
                await same(source, replica)
            case 1:
                for link in source.links:
                    link.close("broken")
            case 2:
                await source.reopen()
            case 3:
                await replica.reopen()
    await same(source, replica)
    following = replica.replicas.all["copy"]
    assert following.connected
    # In memory again: what is on disk only is as it was.
    await replica.replicas.detach("copy")
    receivers = Receiver(credit=1000), Receiver(credit=1000)
    source.post.attach(source.post.queue("orders"), receivers[0])
    replica.post.attach(replica.post.queue("copy"), receivers[1])
    count = source.post.message_count(source.post.queue("orders"))
    got = [[each.message.data for each in await receiver.wait(count)] for receiver in receivers]
    assert got[0] == got[1]
    assert count


async def drained(place: Place, name: str) -> list[bytes]:
    """Take everything out of a queue, as fast as it comes."""
    queue, receiver = place.post.queue(name), Receiver()
    place.post.attach(queue, receiver)
    taken = 0
    while place.post.message_count(queue):
        got = (await receiver.wait(taken + 1))[taken:]
        place.post.acknowledge(got)
        taken += len(got)
    place.post.detach(queue, receiver)
    return receiver.bodies


@pytest.mark.asyncio
async def test_a_replica_holds_in_memory_what_its_address_may(tmp_path: Path) -> None:
    """Its source has no limit; what the replica has above its own is on disk only, and comes in order."""
    source, replica = Place(tmp_path / "1", 1), Place(tmp_path / "2", 2)
    others: dict[int, Site] = {place.port: place for place in (source, replica)}
    replica.bounded()
    for place in (source, replica):
        place.others = others
        await place.open()
    await replicate(source, replica)
    bodies = [b"%05d" % number + b"x" * 500 for number in range(1000)]
    for start in range(0, 1000, 100):
        await source.office.send(*bodies[start : start + 100])
    copy = replica.post.queue("copy")
    await until(lambda: replica.post.message_count(copy) == 1000)
    # The last file is not folded yet.
    await until(lambda: copy.cold > 700)
    assert replica.in_memory("copy") < 200_000 < source.in_memory("orders")
    assert replica.post.pages.active == {}
    # What leaves the source leaves it, wherever it is; what comes is behind it.
    ids = [reference.message.id for reference in source.post.queue("orders").iterate()]
    source.post.take_out(source.post.queue("orders"), {*ids[:10], *ids[990:]})
    await source.office.send(b"last")
    await until(lambda: replica.post.message_count(copy) == 981)
    await replica.replicas.detach("copy")
    assert await drained(replica, "copy") == [*bodies[10:990], b"last"]
    for place in (source, replica):
        await place.close()
        assert place.office.failures == []


@pytest.mark.asyncio
async def test_what_its_source_has_in_pages_is_copied_as_it_is_read(tmp_path: Path) -> None:
    """At each moment the replica is the beginning of its source, in order; both hold what they may in memory."""
    source, replica = Place(tmp_path / "1", 1), Place(tmp_path / "2", 2)
    others: dict[int, Site] = {place.port: place for place in (source, replica)}
    for place in (source, replica):
        place.bounded()
        place.others = others
        await place.open()
    await replicate(source, replica)
    bodies = [b"%05d" % number + b"x" * 500 for number in range(300)]
    await source.office.send(*bodies)
    queue = source.post.queue("orders")
    hot = queue.message_count
    assert source.post.message_count(queue) == 300 > 2 * hot
    await until(lambda: replica.bodies("copy") == bodies[:hot])
    receiver = Receiver()
    source.post.attach(queue, receiver)
    for taken in range(0, 300, 10):
        got = (await receiver.wait(taken + 10))[taken : taken + 10]
        # What a consumer of the source holds is in the replica.
        held = [reference.message.data for reference in receiver.got[taken:]]
        await until(lambda: replica.bodies("copy")[: len(held)] == held)  # noqa: B023
        source.post.acknowledge(got)
        assert source.in_memory("orders") < 100_000
        assert replica.in_memory("copy") < 200_000
        if taken == 100:
            for link in source.links:
                link.close("broken")
    assert receiver.bodies == bodies
    await until(lambda: replica.bodies("copy") == [])
    await source.office.send(b"after")
    await until(lambda: replica.bodies("copy") == [b"after"])
    for place in (source, replica):
        await place.close()
        assert place.office.failures == []
