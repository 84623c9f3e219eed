"""Members that a live does not take: both say why and what to do, and nobody's data is touched.

With processes, and for strangers that are no brokers, see :mod:`e2e.test_replication_refusals`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from broker.ha.replicated_group import PASSWORD, TIMEOUT, Peer, free_ports, until
from pollux.ha.machine import Phase
from pollux.ha.replication import local
from pollux.ha.replication.local import LocalState
from pollux.ha.replication.member import RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

STRANGER = "0f" * 16
MANAGER = (
    '<manager><class-name>file</class-name><properties><property key="locks-folder" value="{locks}"/></properties>'
    "</manager>"
)
TWINS = "<group-name>twins</group-name>"


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Peer]]:
    """Members of one pair, by role; the first is castor, the second pollux."""
    ports = dict(zip(("castor", "pollux"), free_ports(2), strict=True))
    made: list[Peer] = []

    def peer(name: str, role: str, *, manager: bool, group: str = TWINS, password: str = PASSWORD) -> Peer:
        inside = (MANAGER.format(locks=tmp_path / "locks") if manager else "") + group
        made.append(Peer(tmp_path / name, name, f"<{role}>{inside}</{role}>", ports, password=password))
        return made[-1]

    yield peer
    for one in made:
        await one.die()


def said(caplog: pytest.LogCaptureFixture, message: str) -> list[str]:
    """The reasons in the log's lines with this message."""
    return [
        str(getattr(record, "fields", {}).get("reason")) for record in caplog.records if record.message == message
    ]


def files_in(peer: Peer) -> dict[str, bytes]:
    """What is stored there; locks and the like are the process's."""
    return {
        str(path.relative_to(peer.directory)): path.read_bytes()
        for path in peer.directory.rglob("*")
        if path.is_file() and not path.name.startswith(("pollux.", ".pollux", "spare-"))
    }


async def serve(peer: Peer) -> None:
    """It is the live, with data."""
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
        group="<group-name>others</group-name>" if what == "group" else TWINS,
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
    pollux = make("pollux", "primary", manager=manager)
    await serve(pollux)
    await pollux.die()
    castor = make("castor", "primary", manager=manager)
    await serve(castor)
    before = files_in(castor), files_in(pollux)
    pollux.start()
    assert pollux.life is not None
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(RefusedError, match="make one of them a <backup> without data, or give it a group-name"):
            await pollux.life
    assert any("configured as the live of the group 'twins'" in reason for reason in said(caplog, "backup refused"))
    assert castor.phase is Phase.LIVE
    assert (files_in(castor), files_in(pollux)) == before
