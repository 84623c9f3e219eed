"""Who is refused by a replicating live, with a line that says what to do; and nobody's data is touched."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from harness.failover import wait_until
from harness.replication import CLUSTER_PASSWORD, Pair, file_manager
from pollux.cluster.connector import ClusterConnector
from pollux.cluster.link import CoreHub
from pollux.cluster.link.core_link import CoreConnectionError
from pollux.config.acceptors import Endpoint
from pollux.ha.copies import local
from pollux.ha.copies.backup_side import BackupSide
from pollux.ha.copies.local import LocalState
from pollux.process.exits import EXIT_STORE_REFUSED
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.replication import Replica

pytestmark = pytest.mark.timeout(300)
#: Generous: a machine under load.
TIMEOUT = 60.0
STRANGER = "0f" * 16
LIVE = "<primary>{manager}<group-name>twins</group-name>{own}</primary>"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two brokers that were both made the live of one group, and each have data; the first one serves."""
    directory = tmp_path_factory.mktemp("refusals")
    with Pair(directory, file_manager(directory / "locks"), LIVE, LIVE) as found:
        first, second = found.replicas
        text = second.configuration.read_text()
        second.configuration.write_text(text.replace("twins</group-name>", "others</group-name>"))
        second.start()
        second.wait_for("live")
        second.stop()
        second.configuration.write_text(text)
        first.start()
        first.wait_for("live")
        # It serves before it puts down how long that took.
        wait_until(
            lambda: (state := first.local) is not None and state.history[-1].duration_ms >= 0,
            "the first's activation is put down whole",
        )
        yield found


@pytest.fixture
def live(pair: Pair) -> Iterator[Replica]:
    """The live; whoever was refused has changed nothing about it."""
    found = pair.replicas[0]
    before = found.local
    yield found
    assert found.phase == "live"
    assert found.local == before


def files_in(directory: Path) -> dict[str, bytes]:
    """Read the files that are stored there; locks and the like are the process's."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(("pollux.", ".pollux", "spare-"))
    }


def logged(broker: Replica, *words: str) -> str:
    """The line of the log with all these words; it may be written a moment later."""
    lines: list[str] = []

    def there() -> bool:
        lines[:] = [line for line in broker.text().splitlines() if all(word in line for word in words)]
        return bool(lines)

    wait_until(there, f"{broker.name} says {' ... '.join(words)}")
    return lines[-1]


async def hub(password: str = CLUSTER_PASSWORD) -> CoreHub:
    return CoreHub(await asyncio.to_thread(ClusterKey, "twins", password), name="pollux", node_id=b"", timeout=TIMEOUT)


async def test_a_wrong_cluster_password(live: Replica) -> None:
    with pytest.raises(CoreConnectionError, match=r"denied: .* give both brokers the same cluster-password"):
        await ClusterConnector(await hub("a wrong one")).connect(Endpoint("tcp", "127.0.0.1", live.port), TIMEOUT)
    line = await asyncio.to_thread(logged, live, "log-in refused", "127.0.0.1", "same cluster-password")
    assert "WARNING" in line
    assert "a wrong one" not in live.text()
    assert CLUSTER_PASSWORD not in live.text()


def spoken(live: Replica, data: bytes) -> bytes:
    """Return the broker's answer to these bytes before it closes."""
    found = b""
    with socket.create_connection(("127.0.0.1", live.port), timeout=TIMEOUT) as stream:
        stream.sendall(data)
        try:
            while more := stream.recv(4096):
                found += more
        except ConnectionResetError:
            pass
    return found


def test_another_version_of_the_protocol(live: Replica) -> None:
    assert b"upgrade the older one" in spoken(live, b"POLLUX\x09\x08")
    line = logged(live, "broker refused", "versions 8 to 9")
    assert "upgrade the older one" in line
    assert "127.0.0.1" in line


@pytest.mark.parametrize("seed", range(3))
def test_a_stranger_speaks_garbage(live: Replica, seed: int) -> None:
    garbage = b"POLLUX\x01\x01" + bytes((seed, 255, 255, 255)) + os.urandom(2000)
    spoken(live, garbage)
    assert "keep it away from this port" in logged(live, "broker refused", "protocol")


async def refused(live: Replica, directory: Path, state: LocalState, **about: Any) -> tuple[str, str]:
    """Follow with this data: how that ended. The data stays as it is."""
    roots = {name: directory / name for name in ("journal", "bindings", "large", "paging")}
    for root in roots.values():
        root.mkdir()
    (roots["journal"] / "pollux-00000001-0000000001.segment").write_bytes(b"precious")
    local.write(roots["journal"], state)
    before = files_in(directory)
    ended: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
    link = await ClusterConnector(await hub()).connect(Endpoint("tcp", "127.0.0.1", live.port), TIMEOUT)
    following = BackupSide(
        link.conversation,
        roots,
        loop=asyncio.get_running_loop(),
        keep=0,
        on_synced=lambda _: pytest.fail("it was taken"),
        on_end=lambda code, text: ended.set_result((code, text)),
        about={"id": "x", "name": "pollux", "host": "here", "pid": 1, "group": "twins", "role": "backup", **about},
    )
    try:
        following.begin()
        async with asyncio.timeout(TIMEOUT):
            return await ended
    finally:
        link.close("done")
        await following.stop()
        assert files_in(directory) == before


async def test_data_of_another_node(live: Replica, tmp_path: Path) -> None:
    state = LocalState(STRANGER, 1, 1, complete=True, replica=True)
    code, text = await refused(live, tmp_path, state, name="stranger")
    assert code == "refused"
    assert "move its data away if it shall become this broker's backup" in text
    await asyncio.to_thread(logged, live, "backup refused", "backup=stranger", STRANGER, "move its data away")


async def test_a_backup_with_newer_data(live: Replica, tmp_path: Path) -> None:
    assert live.local is not None
    state = LocalState(live.local.node_id, 99, 99, complete=True, replica=True)
    code, text = await refused(live, tmp_path, state, name="newer")
    assert code == "refused"
    assert "has the sequence 99, newer than ours" in text
    await asyncio.to_thread(logged, live, "backup refused", "backup=newer", "pollux journal compare")


def test_a_second_live_of_one_group(pair: Pair, live: Replica) -> None:
    """It ends before it has served anybody."""
    second = pair.replicas[1]
    before = files_in(second.directory / "data")
    second.spawn()
    assert second.wait_for_end() == EXIT_STORE_REFUSED
    words = ("both brokers are configured as the live of the group 'twins'", "make one of them a <backup>")
    logged(second, *words)
    logged(live, "backup refused", *words)
    assert files_in(second.directory / "data") == before
