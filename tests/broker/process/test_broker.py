"""A broker as a process: start, ready, stop, reload, locks, exit codes, fail-stop."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.conftest import PASSWORD, Stomp
from harness.store import NODE, opened, settings_in
from pollux.config.verifiers import MINIMUM_ITERATIONS, Verifier
from pollux.process.exits import EXIT_LISTEN, EXIT_LOCKED, EXIT_OK, EXIT_STORE, EXIT_USAGE
from pollux.store.data_lock import DirectoryLock, DirectoryLockedError, node_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.conftest import Instance


def test_start_serve_stop(broker: Instance) -> None:
    with broker.stomp() as client:
        assert client.connected[0] == "CONNECTED"
        client.publish("orders", "kept")
        assert json.loads((broker.directory / "ports.json").read_text()) == broker.ports
        process = broker.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        broker.notifications.wait_for("STOPPING=1")
        while client.receive()[0]:
            pass  # the client is told, then the connection ends
        assert process.wait(30) == EXIT_OK
    assert broker.messages()[-1] == "broker stopped"
    assert not (broker.directory / "data/journal/pollux.token").exists()
    assert not (broker.directory / "data/journal/pollux.status.json").exists()


def test_messages_survive_a_stop_and_a_kill(broker: Instance) -> None:
    with broker.stomp() as client:
        client.publish("orders", "one")
    assert broker.stop() == EXIT_OK
    broker.start()
    with broker.stomp() as client:
        client.publish("orders", "two")
    broker.stop(signal.SIGKILL)
    broker.start()
    with broker.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "orders", "ack": "auto"})
        assert [client.receive()[2] for _ in range(2)] == ["one", "two"]


def test_an_idle_broker_stops_at_once(broker: Instance) -> None:
    started = time.monotonic()
    assert broker.stop(signal.SIGINT) == EXIT_OK
    assert time.monotonic() - started < 5


def test_files_of_a_running_broker_are_private(broker: Instance) -> None:
    for name in ("pollux.token", "pollux.status.json"):
        assert stat.S_IMODE((broker.directory / "data/journal" / name).stat().st_mode) == 0o600


def test_two_brokers_never_share_a_directory(broker: Instance) -> None:
    journal = broker.directory / "data/journal"
    before = (journal / "pollux.status.json").read_text()
    first = broker.process
    broker.start(wait=False)
    second = broker.process
    broker.process = first
    assert second is not None
    assert first is not None
    assert second.wait(30) == EXIT_LOCKED
    refusal = broker.messages()[-2:]
    assert any("another broker has it open" in text and f'"pid": {first.pid}' in text for text in refusal), refusal
    # The loser leaves the winner's files alone.
    assert (journal / "pollux.status.json").read_text() == before
    with broker.stomp() as client:
        assert client.connected[0] == "CONNECTED"


def test_the_node_id_stays(broker: Instance) -> None:
    first = broker.request("GET", "/api/v1/status")[1]["nodeId"]
    broker.stop()
    broker.start()
    assert broker.request("GET", "/api/v1/status")[1]["nodeId"] == first


def test_a_taken_port_ends_the_start(instance: Instance) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = instance.file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}")
        instance.file.write_text(text)
        instance.start(wait=False)
        assert instance.process is not None
        assert instance.process.wait(30) == EXIT_LISTEN
    assert any("acceptor 'all': cannot listen" in text for text in instance.messages())
    (stopped,) = [line for line in instance.records() if line["message"] == "broker stopped"]
    assert stopped["exit"] == EXIT_LISTEN, "the log says what the service manager sees"


def test_what_is_not_built_is_refused_by_name(instance: Instance) -> None:
    instance.configure(core="<ha-policy><shared-store><slave><scale-down/></slave></shared-store></ha-policy>")
    instance.start(wait=False)
    assert instance.process is not None
    assert instance.process.wait(30) == EXIT_USAGE
    assert "scale-down" in instance.log.read_text()


def test_a_wrong_file_ends_the_start_with_every_problem(instance: Instance) -> None:
    instance.configure(core="<nonsense>1</nonsense><thread-pool-max-siz>x</thread-pool-max-siz>")
    instance.start(wait=False)
    assert instance.process is not None
    assert instance.process.wait(30) == EXIT_USAGE
    text = instance.log.read_text()
    assert f"{instance.file}:" in text
    assert "nonsense" in text
    assert "thread-pool-max-siz" in text


def test_clear_text_passwords_end_the_start(instance: Instance) -> None:
    with instance.users.users.open("a") as file:
        file.write("admin = admin\n")
    instance.start(wait=False)
    assert instance.process is not None
    assert instance.process.wait(30) == EXIT_USAGE
    assert "pollux user add admin" in instance.log.read_text()


# -- log-in over the wire


@pytest.mark.parametrize(("user", "password"), [("ada", "wrong"), ("eve", "castor")])
def test_wrong_credentials(broker: Instance, user: str, password: str) -> None:
    with broker.stomp(user, password) as client:
        assert client.connected[0] in ("ERROR", "")
    refused = [record for record in broker.records() if record["message"] == "log-in refused"]
    assert refused
    assert refused[-1]["source"] == "127.0.0.1"
    assert "wrong" not in json.dumps([record.get("password") for record in refused])


def test_a_user_without_permission(broker: Instance) -> None:
    with broker.stomp("bob", "pollux") as client:
        assert client.connected[0] == "CONNECTED"
        client.send("SEND", {"destination": "orders", "receipt": "r"}, "x")
        assert client.receive()[0] == "ERROR"


# -- reload


@pytest.mark.parametrize("destination", ["#", "#::all"])
def test_a_reload_changes_what_a_pattern_gives(instance: Instance, destination: str) -> None:
    """ada may listen to #, and of secret.# gets what its own setting says now."""
    rule = '"/></security-setting><security-setting match="secret.#"><permission type="send" roles="amq"/>'
    rule += '<permission type="createAddress" roles="amq"/>'
    addresses = '<address name="#"><multicast><queue name="all"/></multicast></address>'
    instance.configure(addresses=addresses)
    instance.start()
    with instance.stomp() as client, instance.stomp() as sender:
        subscribe = {"id": "1", "destination": destination, "destination-type": "MULTICAST", "ack": "auto"}
        client.send("SUBSCRIBE", {**subscribe, "receipt": "s"})
        assert client.receive()[0] == "RECEIPT"
        waiting: list[str] = []
        for roles in ("others", "amq", "others"):
            instance.configure(manage=f'amq{rule}<permission type="consume" roles="{roles}', addresses=addresses)
            assert instance.request("POST", "/api/v1/reload")[0] == 200
            for address in ("secret.x", "open.x"):
                sender.publish(address, address, **{"destination-type": "MULTICAST"})
            if roles == "others":
                waiting += ["secret.x"] if destination == "#::all" else []
                assert client.receive()[2] == "open.x"
            else:
                expected = [*waiting, "secret.x", "open.x"]
                assert [client.receive()[2] for _ in expected] == expected


def test_reload_of_settings_queues_and_users(broker: Instance) -> None:
    broker.configure(
        addresses='<address name="news"><multicast><queue name="news-all"/></multicast></address>',
        settings="<max-size-bytes>42M</max-size-bytes>",
        core="<journal-pool-files>7</journal-pool-files>",
        manage="amq,other",
    )
    broker.users.add("zoe", Verifier.create("z", iterations=MINIMUM_ITERATIONS), frozenset({"amq"}))
    assert broker.process is not None
    assert broker.request("GET", "/api/v1/status", user="bob", password="pollux")[0] == 403
    broker.process.send_signal(signal.SIGHUP)
    broker.notifications.wait_for("RELOADING=1")
    broker.notifications.wait_for("READY=1")
    assert broker.request("GET", "/api/v1/queues/news-all")[0] == 200
    settings = broker.request("GET", "/api/v1/addresses/orders")[1]["settings"]
    assert settings["maxSizeBytes"] == 42 * 1024 * 1024
    assert broker.request("GET", "/api/v1/status", user="bob", password="pollux")[0] == 200
    with broker.stomp("zoe", "z") as client:
        assert client.connected[0] == "CONNECTED"
    needs = [record["what"] for record in broker.records() if record["message"] == "change needs a restart"]
    assert len(needs) == 1
    assert needs[0].startswith("journal-pool-files ")


def test_a_broker_that_begins_another_life_is_not_ended_by_a_reload(make_instance: Callable[[], Instance]) -> None:
    """Breaks when the process dies of the signal while nobody listens to it: between two lives, and in a start."""
    live, backup = make_instance(), make_instance()
    live.configure(
        core="<ha-policy><shared-store><primary><failover-on-shutdown>true</failover-on-shutdown></primary>"
        "</shared-store></ha-policy>"
    )
    backup.configure(
        core="<ha-policy><shared-store><backup><restart-backup>true</restart-backup></backup></shared-store></ha-policy>"
    )
    (backup.directory / "data").symlink_to(live.directory / "data")
    live.start()
    backup.start()
    process = backup.process
    assert process is not None
    for life in range(1, 20):  # on a busy machine the moment may pass between two looks
        live.stop()
        while backup.messages().count("broker is live") < life:
            time.sleep(0.01)
        live.start(wait=False)
        sent = 0
        while backup.messages().count("management listens") <= life and process.poll() is None:
            if not listens_to(signal.SIGHUP, process.pid):
                process.send_signal(signal.SIGHUP)
                sent += 1
        if sent:
            break
        live.notifications.wait_for("READY=1")
    assert sent
    assert backup.stop() == EXIT_OK


def listens_to(number: signal.Signals, pid: int) -> bool:
    """Whether the process has a handler of its own for the signal."""
    caught = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught[0], 16) >> (number - 1) & 1)


def test_a_wrong_file_changes_nothing(broker: Instance) -> None:
    broker.file.write_text(broker.file.read_text().replace("<name>", "<nam>"))
    assert broker.process is not None
    broker.process.send_signal(signal.SIGHUP)
    broker.notifications.wait_for("RELOADING=1")
    broker.notifications.wait_for("READY=1")
    assert any("reload refused" in text for text in broker.messages())
    with broker.stomp() as client:
        assert client.connected[0] == "CONNECTED"


def test_a_router_that_a_reload_cannot_take_goes_on_and_files_are_noticed_after_it(instance: Instance) -> None:
    """Breaks when its acceptor serves whoever comes, as there is no router, and nobody looks at files any more."""
    secret, connectors = "<cluster-password>ours</cluster-password>", '<connectors><connector name="new">{}</connector>'
    router = '<connection-routers><connection-router name="r">{}</connection-router></connection-routers>'
    others = '<policy name="FIRST_ELEMENT"/><pool><static-connectors><connector-ref>new</connector-ref>'
    before = router.format("<local-target-filter>nobody</local-target-filter>")
    after = router.format(f"<key-type>USER_NAME</key-type>{others}</static-connectors></pool>")
    after += connectors.format("tcp://127.0.0.1:1") + "</connectors>"
    instance.configure(parameters="router=r", core=secret + before, refresh="100")
    instance.start()
    instance.configure(parameters="router=r", core=secret + after, refresh="100")
    line = f"connection-router 'r' of {instance.file} is used after a restart, like the connector 'new'"
    while line not in [
        record["what"] for record in instance.records() if record["message"] == "change needs a restart"
    ]:
        instance.notifications.wait_for("RELOADING=1")
        instance.notifications.wait_for("READY=1")
    with instance.stomp() as client:
        command, headers, _ = client.connected
        assert (command, "use another broker" in headers["message"]) == ("ERROR", True)
    instance.configure(parameters="router=r", core=secret + before, refresh="100")
    instance.notifications.wait_for("RELOADING=1")
    instance.notifications.wait_for("READY=1")


def test_changed_files_are_noticed_and_a_removed_user_is_cut_off(instance: Instance) -> None:
    instance.configure(refresh="100")
    instance.start()
    with instance.stomp() as client:
        instance.users.remove("ada")
        while client.receive()[0]:
            pass
    with instance.stomp() as client:
        assert client.connected[0] != "CONNECTED"


def test_a_standby_feeds_the_service_manager_s_watchdog(
    make_instance: Callable[[], Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that finds no live waits for ever, and is no reason to end it: its loop runs."""
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    standby = make_instance()
    standby.configure(core="<ha-policy><shared-store><backup/></shared-store></ha-policy>")
    standby.start(wait=False)
    began = time.monotonic()
    for _ in range(20):
        standby.notifications.wait_for("WATCHDOG=1")
    assert time.monotonic() - began > 19 * 0.2 * 0.9, "not more often than is asked for"
    assert "broker is live" not in standby.messages()
    standby.stop()


def test_a_standby_reloads_for_itself_and_for_the_life_to_come(make_instance: Callable[[], Instance]) -> None:
    """Breaks when a reload takes for granted that there is a store."""
    live, standby = make_instance(), make_instance()
    live.configure(core="<ha-policy><shared-store><primary/></shared-store></ha-policy>")
    policy = "<ha-policy><shared-store><backup/></shared-store></ha-policy>"
    standby.configure(core=policy)
    (standby.directory / "data").symlink_to(live.directory / "data")
    live.start()
    standby.start()
    news = '<address name="news"><multicast><queue name="news-all"/></multicast></address>'
    standby.configure(core=policy, addresses=news)
    assert standby.process is not None
    standby.process.send_signal(signal.SIGHUP)
    standby.notifications.wait_for("RELOADING=1")
    assert "STATUS=ready" in standby.notifications.wait_for("READY=1")
    assert "configuration reloaded" in standby.messages()
    asked = standby.pollux("reload", "--config", "broker.xml")
    assert (asked.returncode, asked.stdout) == (0, "reloaded\n"), asked.stderr
    standby.notifications.wait_for("READY=1")
    live.kill()
    standby.notifications.wait_for("READY=1")
    standby.stop()
    (live_again,) = [record for record in standby.records() if record["message"] == "broker is live"]
    stored = live.directory / "data/bindings"
    assert live_again["epoch"] > 1
    assert any(b"news-all" in path.read_bytes() for path in stored.iterdir() if path.is_file())


def test_a_standby_serves_after_a_reload_of_a_router_that_names_what_is_new(
    make_instance: Callable[[], Instance],
) -> None:
    """Breaks when the life to come has the router and not the connector: it would end at the failover.

    The router that it was started with decides then, as the reference's KeyTypeTest has it on a backup.
    """
    live, standby = make_instance(), make_instance()
    live.configure(core="<ha-policy><shared-store><primary/></shared-store></ha-policy>")
    policy = "<cluster-password>ours</cluster-password><ha-policy><shared-store><backup/></shared-store></ha-policy>"
    router = '<connection-routers><connection-router name="r"><key-type>USER_NAME</key-type>{}</connection-router>'
    before = router.format("<local-target-filter>ada</local-target-filter>") + "</connection-routers>"
    standby.configure(parameters="router=r", core=policy + before)
    standby.users.add("bea", Verifier.create("b", iterations=MINIMUM_ITERATIONS), frozenset({"amq"}))
    (standby.directory / "data").symlink_to(live.directory / "data")
    live.start()
    standby.start()
    pool = "<pool><static-connectors><connector-ref>new</connector-ref></static-connectors></pool>"
    after = router.format('<policy name="FIRST_ELEMENT"/>' + pool) + "</connection-routers>"
    new = '<connectors><connector name="new">tcp://127.0.0.1:1</connector></connectors>'
    standby.configure(parameters="router=r", core=policy + new + after)
    asked = standby.pollux("reload", "--config", "broker.xml")
    assert (asked.returncode, "is used after a restart, like the connector 'new'" in asked.stdout) == (1, True)
    standby.notifications.wait_for("READY=1")
    live.kill()
    standby.notifications.wait_for("READY=1")
    assert "broker is live" in standby.messages()
    (port,) = [record["port"] for record in standby.records() if record["message"] == "acceptor listens"]
    for user, password, answer in (("ada", PASSWORD, "CONNECTED"), ("bea", "b", "ERROR")):
        with Stomp(socket.create_connection(("127.0.0.1", port), 30), user, password) as client:
            assert client.connected[0] == answer
    assert standby.stop() == EXIT_OK


# -- limits


def test_idle_clients_without_log_in_are_closed(instance: Instance) -> None:
    instance.configure(parameters="handshake-timeout=1")
    instance.start()
    with instance.connect() as silent:
        assert silent.recv(1) == b""
    assert any(
        record["message"] == "connection refused" and "no log-in" in record["reason"] for record in instance.records()
    )


# -- failure of the store


def test_a_failed_store_confirms_nothing_and_ends_the_process(instance: Instance) -> None:
    # The file size limit makes every further write of the journal fail, as a broken disk does (of the log too).
    instance.start()
    assert instance.process is not None
    with instance.stomp() as client:
        client.publish("orders", "kept")
        resource.prlimit(instance.process.pid, resource.RLIMIT_FSIZE, (0, 0))
        client.send("SEND", {"destination": "orders", "persistent": "true", "receipt": "lost"}, "never confirmed")
        try:
            answer = client.receive()
        except ConnectionError:
            answer = ("", {}, "")
        assert answer[0] != "RECEIPT"
    assert instance.process.wait(30) == EXIT_STORE
    instance.start()
    with instance.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "orders", "ack": "auto"})
        assert client.receive()[2] == "kept"


# -- the lock by itself


def test_locks_are_of_the_open_file_not_of_the_process(tmp_path: Path) -> None:
    first = DirectoryLock([tmp_path / "a", tmp_path / "b"])
    second = DirectoryLock([tmp_path / "b", tmp_path / "c"])
    first.acquire("one")
    with pytest.raises(DirectoryLockedError, match=r"b: another broker has it open .*one"):
        second.acquire("two")
    assert not second.held
    # Closing another descriptor of the same file does not drop it, as a POSIX lock would.
    os.close(os.open(tmp_path / "b" / "pollux.lock", os.O_RDWR))
    with pytest.raises(DirectoryLockedError):
        second.acquire("two")
    first.release()
    second.acquire("two")
    second.release()


def test_a_damaged_node_id_is_not_replaced(tmp_path: Path) -> None:
    made = node_id(tmp_path)
    assert node_id(tmp_path) == made
    (tmp_path / "pollux.node-id").write_text("?")
    with pytest.raises(Exception, match="does not hold a node id"):
        node_id(tmp_path)


async def test_a_lost_node_id_is_the_journals(tmp_path: Path) -> None:
    """Breaks where one is invented: the broker's own journal would be refused as another's from then on."""
    settings = settings_in(tmp_path)
    async with opened(settings):
        pass
    assert node_id(settings.journal_directory) == NODE
    assert (settings.journal_directory / "pollux.node-id").exists()


def test_start_up_is_quick(make_instance: Callable[[], Instance]) -> None:
    """Not a benchmark: an import or a wait gone wrong would take seconds."""
    instance = make_instance()
    instance.start()
    live = next(record for record in instance.records() if record["message"] == "broker is live")
    assert live["start_seconds"] < 3


def test_max_queues_of_a_user(instance: Instance) -> None:
    instance.configure(
        core="<resource-limit-settings><resource-limit-setting match='ada'><max-queues>1</max-queues>"
        "</resource-limit-setting></resource-limit-settings>"
    )
    instance.start()
    with instance.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "first", "receipt": "s"})
        assert client.receive()[0] == "RECEIPT"
        client.send("SUBSCRIBE", {"id": "2", "destination": "second", "receipt": "s"})
        command, headers, text = client.receive()
        assert command == "ERROR"
        assert "max-queues" in json.dumps((headers, text))
    with instance.stomp() as client:
        client.send("SUBSCRIBE", {"id": "1", "destination": "orders", "receipt": "s"})
        assert client.receive()[0] == "RECEIPT"  # a queue that is there already is no new one
