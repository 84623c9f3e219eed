"""Members that a live does not take: both say why and what to do, and nobody's data is touched.

With processes, and for strangers that are no brokers, see :mod:`e2e.test_replication_refusals`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from broker.ha.replicated_group import PASSWORD, TIMEOUT, Peer, until
from harness.ports import free_port
from pollux.errors import StoreRefusedError
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.machine import Phase
from pollux.ha.replication.member import Member

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from harness.zookeeper import ZooKeeperProcess

STRANGER = "0f" * 16
MANAGER = "<manager><class-name>{kind}</class-name><properties>{properties}</properties></manager>"
PROPERTY = '<property key="{}" value="{}"/>'
TWINS, OTHERS = "<group-name>twins</group-name>", "<group-name>others</group-name>"


@pytest.fixture
async def make(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Peer]]:
    """Members of one pair, by role; the first is castor, the second pollux. `manager`: a lock file, or its kind."""
    ports = dict(zip(("castor", "pollux"), (free_port(), free_port()), strict=True))
    made: list[Peer] = []

    def service(kind: str) -> str:
        given = {"locks-folder": str(tmp_path / "locks")}
        if kind == "zookeeper":
            server: ZooKeeperProcess = request.getfixturevalue("zookeeper")
            given = {"connect-string": server.connect_string, "namespace": tmp_path.name, "session-ms": "60000"}
        return MANAGER.format(kind=kind, properties="".join(PROPERTY.format(*one) for one in given.items()))

    def peer(name: str, role: str, *, manager: bool | str, group: str = TWINS, password: str = PASSWORD) -> Peer:
        inside = (service("file" if manager is True else manager) if manager else "") + group
        made.append(Peer(tmp_path / name, name, f"<{role}>{inside}</{role}>", ports, password=password))
        return made[-1]

    yield peer
    for one in made:
        await one.die()


def said(caplog: pytest.LogCaptureFixture, message: str) -> list[str]:
    """The reasons in the log's lines with this message."""
    return [str(getattr(record, "fields", {}).get("reason")) for record in caplog.records if record.message == message]


def files_in(peer: Peer) -> dict[str, bytes]:
    """Read the files that are stored there; locks and the like are the process's."""
    return {
        str(path.relative_to(peer.directory)): path.read_bytes()
        for path in peer.directory.rglob("*")
        if path.is_file() and not path.name.startswith(("pollux.", ".pollux", "spare-"))
    }


def rename(peer: Peer, before: str, after: str) -> None:
    """An operator changes its broker.xml."""
    peer.path.write_text(peer.path.read_text().replace(before, after))


async def serve(peer: Peer) -> None:
    """Have it be the live, with data."""
    peer.start()
    await until(lambda: peer.phase is Phase.LIVE, f"{peer.name} serves")
    assert peer.activation._noting is not None
    await peer.activation._noting  # how long it took is written a moment later
    await peer.confirm("1", b"precious")


@pytest.mark.parametrize("manager", [True, False], ids=["manager", "votes"])
@pytest.mark.parametrize("what", ["password", "node", "newer", "group"])
async def test_a_backup_that_is_not_taken(
    make: Callable[..., Peer], caplog: pytest.LogCaptureFixture, what: str, *, manager: bool
) -> None:
    caplog.set_level(logging.INFO)
    castor = make("castor", "primary", manager=manager)
    await serve(castor)
    live = castor.state
    pollux = make(
        "pollux",
        "backup",
        manager=manager,
        group=OTHERS if what == "group" else TWINS,
        password="gemini" if what == "password" else PASSWORD,
    )
    own = LocalState(live.node_id, live.sequence, live.epoch, complete=True, replica=True)
    states = {
        "node": LocalState(STRANGER, 1, 1, complete=True, replica=True),
        "newer": LocalState(live.node_id, 99, 99, complete=True, replica=True),
    }
    (pollux.directory / "large" / "1.msg").write_bytes(b"what pollux has")
    local.write(pollux.directory / "journal", states.get(what, own))
    before = files_in(castor), files_in(pollux)
    pollux.start()
    expected = {
        "password": "give both brokers the same cluster-password",
        "node": "move its data away if it shall become this broker's backup",
        "newer": "stop both brokers, see with 'pollux journal compare' what each has",
        "group": "give both the same group-name if they shall be",
    }[what]
    await until(lambda: any(expected in reason for reason in said(caplog, "cannot follow")), "pollux says what to do")
    if what == "password":
        # Castor's line is written by its listener: e2e.test_replication_refusals.
        assert not any(PASSWORD in reason or "gemini" in reason for reason in said(caplog, "cannot follow"))
    else:
        assert any(expected in reason for reason in said(caplog, "backup refused")), "castor says so too"
    assert (files_in(castor), files_in(pollux)) == before
    assert castor.phase is Phase.LIVE
    assert not pollux.in_sync
    assert castor.backups() == {}


@pytest.mark.parametrize("manager", [True, False], ids=["manager", "votes"])
async def test_a_second_live_of_one_group_does_not_start(
    make: Callable[..., Peer], caplog: pytest.LogCaptureFixture, *, manager: bool
) -> None:
    """Each has data of its own; the second one ends before it has served anybody."""
    pollux = make("pollux", "primary", manager=manager, group=OTHERS)
    await serve(pollux)
    await pollux.die()
    rename(pollux, OTHERS, TWINS)
    castor = make("castor", "primary", manager=manager)
    await serve(castor)
    before = files_in(castor), files_in(pollux)
    pollux.start()
    assert pollux.life is not None
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(
            StoreRefusedError, match="make one of them a <backup> without data, or give it a group-name"
        ):
            await pollux.life
    assert any("configured as the live of the group 'twins'" in reason for reason in said(caplog, "backup refused"))
    assert castor.phase is Phase.LIVE
    assert (files_in(castor), files_in(pollux)) == before


@pytest.mark.parametrize("kind", ["file", "zookeeper"])
async def test_two_lives_of_one_group_that_begin_at_the_same_moment(
    make: Callable[..., Peer], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Neither has data, and neither sees the other one serve: one of them does, the other ends."""
    looked: list[Member] = []
    start = Member.start

    def together(member: Member) -> None:
        looked.append(member)
        if len(looked) == 2:
            for one in looked:
                start(one)

    monkeypatch.setattr(Member, "start", together)
    peers = [make(name, "primary", manager=kind) for name in ("castor", "pollux")]
    for one in peers:
        one.start()
    await until(lambda: any(one.life is not None and one.life.done() for one in peers), "one of them is through")
    await until(lambda: sum(one.phase is Phase.LIVE for one in peers) == 1, "one serves")
    live, other = sorted(peers, key=lambda one: one.phase is not Phase.LIVE)
    assert other.life is not None
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(
            StoreRefusedError, match="make one of them a <backup> without data, or give it a group-name"
        ):
            await other.life
    assert any("configured as the live of the group 'twins'" in reason for reason in said(caplog, "backup refused"))
    assert live.phase is Phase.LIVE
    assert files_in(other) == {"broker.xml": other.path.read_bytes()}


async def test_a_live_with_other_data_than_its_groups(make: Callable[..., Peer]) -> None:
    """Whose data the group has is known although nobody serves: without data it waits, with other data it ends."""
    castor = make("castor", "primary", manager=True)
    await serve(castor)
    await castor.die()
    pollux = make("pollux", "primary", manager=True)
    pollux.start()
    await until(lambda: "newer data exists" in pollux.activation.machine.position.reason, "it waits")
    await pollux.die()
    rename(pollux, TWINS, OTHERS)
    await serve(pollux)
    await pollux.die()
    rename(pollux, OTHERS, TWINS)
    before = files_in(pollux)
    pollux.start()
    assert pollux.life is not None
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(
            StoreRefusedError, match=f"'twins' has the data of the node {castor.state.node_id}.*: make this"
        ):
            await pollux.life
    assert files_in(pollux) == before
