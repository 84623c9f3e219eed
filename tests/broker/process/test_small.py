"""sd_notify, reload decisions, resources: the small parts."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import socket
import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from pollux.config import loads
from pollux.config.model import Configuration
from pollux.process import reload, resources
from pollux.process.broker import Broker
from pollux.process.exits import EXIT_FAILED, EXIT_STORE
from pollux.process.failures import exit_code
from pollux.process.notify import Notifier

if TYPE_CHECKING:
    from pathlib import Path

XML = '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">{}</core></configuration>'


@pytest.mark.parametrize("abstract", [False, True])
def test_notifications(*, abstract: bool) -> None:
    directory = tempfile.mkdtemp(prefix="px")
    name = f"@px-test-{os.getpid()}" if abstract else f"{directory}/n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)
        notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())})
        assert notifier.watchdog_interval == 1.5
        notifier.ready("live")
        assert manager.recv(500).decode().split("\n") == ["READY=1", "STATUS=live", f"MAINPID={os.getpid()}"]
        notifier.reloading()
        assert manager.recv(500).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        notifier.extend(2)
        assert manager.recv(500) == b"EXTEND_TIMEOUT_USEC=2000000"
        notifier.alive()
        assert manager.recv(500) == b"WATCHDOG=1"
        notifier.stopping("SIGTERM")
        assert manager.recv(500) == b"STOPPING=1\nSTATUS=SIGTERM"
    notifier.alive()  # the manager is gone: nothing happens
    notifier.close()
    notifier.alive()
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": "relative"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}],
)
def test_without_a_manager_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    notifier.ready("live")
    assert notifier.watchdog_interval is None
    notifier.close()


def test_a_reload_takes_what_it_can_and_names_the_rest() -> None:
    old = Configuration()
    new = replace(old, connection_ttl_override=5, journal_pool_files=3, name="other")
    merged, changed, refused = reload.merge(old, new)
    assert changed == ["connection-ttl-override"]
    assert sorted(line.split()[0] for line in refused) == ["journal-pool-files", "name"]
    assert merged.connection_ttl_override == 5
    assert merged.journal_pool_files == old.journal_pool_files


ROUTED = """<connectors><connector name="a">tcp://a:1</connector></connectors>{more}
<connection-routers><connection-router name="r">{router}</connection-router>{another}</connection-routers>"""
FIXED = "<local-target-filter>a</local-target-filter>"
CHOOSING = '<policy name="FIRST_ELEMENT"/><pool>{}</pool>'
ALONE = "<cluster-password>ours</cluster-password>"
GROUP = """<discovery-groups><discovery-group name="g"><group-address>231.7.7.7</group-address>
<group-port>9876</group-port></discovery-group></discovery-groups>"""
CLUSTER = """<cluster-connections><cluster-connection name="c"><connector-ref>a</connector-ref>
<static-connectors/></cluster-connection></cluster-connections>"""
BY_CONNECTOR = "<static-connectors><connector-ref>{}</connector-ref></static-connectors>"
BY_GROUP = '<discovery-group-ref discovery-group-name="g"/>'


@pytest.mark.parametrize(
    ("pool", "before", "after", "missing"),
    [
        (BY_CONNECTOR.format("b"), ALONE, ALONE, "the connector 'b'"),
        (BY_GROUP, ALONE, ALONE + GROUP, "the discovery-group 'g'"),
        ("<cluster-connection>c</cluster-connection>", ALONE, ALONE + CLUSTER, "the cluster-connection 'c'"),
        (BY_CONNECTOR.format("a"), "", ALONE, "the cluster-password"),
        (BY_CONNECTOR.format("a"), ALONE, ALONE, ""),
        ("<password>theirs</password>" + BY_CONNECTOR.format("a"), "", "", ""),
        (BY_GROUP, ALONE + GROUP, ALONE + GROUP, ""),
        ("<cluster-connection>c</cluster-connection>", ALONE + CLUSTER, ALONE + CLUSTER, ""),
    ],
)
def test_a_router_waits_for_what_its_pool_names(
    tmp_path: Path, pool: str, before: str, after: str, missing: str
) -> None:
    """Breaks when a router is used before what it chooses from: none would be left, or a standby could not serve."""
    text = XML.format(ROUTED)
    another = f'<connection-router name="{{}}">{FIXED}</connection-router>'
    old = loads(text.format(more=before, router=FIXED, another=""), {}, instance=tmp_path)
    wanted = text.format(
        more=after,
        router=CHOOSING.format(pool),
        another=another.format("n") + another.format("m").replace(FIXED, CHOOSING.format(pool)),
    ).replace("</connectors>", '<connector name="b">tcp://b:1</connector></connectors>')
    new = loads(wanted, {}, instance=tmp_path)
    merged, changed, refused = reload.merge(old, new)
    assert changed == ["connection-routers"]
    found = {router.name: router for router in merged.connection_routers}
    assert found["n"].local_target_filter == "a"
    lines = [line for line in refused if line.startswith("connection-router ")]
    if missing:
        assert (*found,) == ("r", "n")
        assert found["r"] == old.connection_routers[0]
        assert [line.endswith(f"is used after a restart, like {missing}") for line in lines] == [True, True]
        assert "'r'" in lines[0]
        assert "'m'" in lines[1]
        # Nothing is changed by a second one, which says it again.
        again = reload.merge(merged, new)
        assert again[1] == []
        assert lines == [line for line in again[2] if line.startswith("connection-router ")]
    else:
        assert merged.connection_routers == new.connection_routers
        assert lines == []


def test_a_moved_line_is_no_change(tmp_path: Path) -> None:
    queue = '<addresses><address name="a"><anycast><queue name="a"/></anycast></address></addresses>'
    old = loads(XML.format(queue), {}, instance=tmp_path)
    new = loads(XML.format("<!-- a comment\n\n-->\n" + queue), {}, instance=tmp_path)
    _, changed, refused = reload.merge(old, new)
    assert (changed, refused) == ([], [])


@pytest.mark.asyncio
async def test_files_are_noticed_also_after_a_reload_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when one defect ends the watch for good, without a word."""
    reloads, changes = asyncio.Queue[int](), itertools.count()
    monkeypatch.setattr(reload, "stamps", lambda _: next(changes))

    async def fails() -> None:
        reloads.put_nowait(1)
        raise KeyError("new")

    settings = SimpleNamespace(configuration_file_refresh_period=1)
    broker: Any = SimpleNamespace(node=SimpleNamespace(configuration=settings), reload=fails)
    watch = asyncio.create_task(Broker._watch_files(broker))
    async with asyncio.timeout(10):
        for _ in range(3):
            await reloads.get()
    assert not watch.done()
    watch.cancel()


def test_stamps_see_every_file(tmp_path: Path) -> None:
    configuration = replace(
        Configuration(),
        path=tmp_path / "broker.xml",
        security=replace(Configuration().security, users_file=tmp_path / "users", roles_file=tmp_path / "roles"),
    )
    before = reload.stamps(configuration)
    for name in ("broker.xml", "users", "roles"):
        (tmp_path / name).write_text("x")
        after = reload.stamps(configuration)
        assert after != before
        before = after


def test_no_collection_but_a_full_one_looks_at_very_many_objects() -> None:
    """Each stands still for everybody; one of a million objects takes half a second."""
    first, second, full = resources.COLLECTOR
    assert first * (second + 1) <= 50_000
    assert first * (second + 1) * (full + 1) >= 50_000_000, "full ones stay rare"


def test_resources() -> None:
    assert resources.raise_descriptor_limit() > 256
    assert resources.connection_limit(10) == 10
    assert resources.memory_limit() > 1 << 20
    assert resources.resident_bytes() > 1 << 20


def test_more_connections_than_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    possible = resources.connection_limit(1 << 40)
    assert possible < 1 << 40
    assert "open-files limit" in caplog.records[0].message


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT, errno.EROFS])
def test_a_start_on_a_disk_that_fails_says_so(number: int) -> None:
    """A supervisor starts it again; of a random failure it would say the same exit status as of a broken request."""
    assert exit_code(OSError(number, os.strerror(number), "/srv/pollux/journal")) == EXIT_STORE
    assert exit_code(OSError(errno.EACCES, os.strerror(errno.EACCES), "/srv/pollux/journal")) == EXIT_FAILED
