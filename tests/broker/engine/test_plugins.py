"""Plugins: what they may do, and that nothing they do harms a broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from broker.engine.conftest import Receiver, message
from pollux.engine import plugins as at_work
from pollux.engine.plugins import EVENTS, Info, Plugins, Running
from pollux.errors import SendError
from pollux.plugins import Plugin, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.engine.conftest import Office
    from pollux.plugins import BrokerInfo, OfferedMessage, SentMessage

HERE = Info("castor", "00" * 16, "1")


class Obedient(Plugin):
    """Refuses what is for `closed`, notes the rest, and keeps what it is told."""

    def __init__(self) -> None:
        super().__init__({})
        self.told: list[tuple[str, dict[str, object]]] = []
        self.views: list[SentMessage] = []

    def start(self, broker: BrokerInfo) -> None:
        self.told.append(("start", {"name": broker.name}))

    def stop(self) -> None:
        self.told.append(("stop", {}))

    def on_event(self, name: str, facts: Any) -> None:
        self.told.append((name, facts))

    def on_send(self, message: SentMessage) -> None:
        self.views.append(message)
        message.annotate("seen", 1)
        if message.address == "closed":
            raise RefusedError("it is closed")


class Evil(Plugin):
    """Raises whatever it is told to, everywhere."""

    def __init__(self, error: BaseException) -> None:
        super().__init__({})
        self.error = error

    def _raise(self, *_: object) -> None:
        raise self.error

    start = stop = on_event = on_send = on_deliver = _raise  # type: ignore[assignment]


def running(make: Callable[[], Plugin], *, refuses: bool = False) -> Plugins:
    return Plugins([Running("mine", make, refuses=refuses)])


def obedient() -> tuple[Plugins, Obedient]:
    plugin = Obedient()
    return running(lambda: plugin), plugin


def test_a_plugin_is_told_what_happens_from_its_start_to_its_end() -> None:
    plugins, plugin = obedient()
    plugins.start(HERE)
    plugins.happened("queue-created", {"queue": "q", "address": None})
    plugins.happened("broker-live", {"epoch": 1})  # no event of the interface
    plugins.stop()
    assert plugin.told == [("start", {"name": "castor"}), ("queue-created", {"queue": "q"}), ("stop", {})]
    assert "broker-live" not in EVENTS


def test_a_plugin_refuses_a_message_and_notes_another() -> None:
    plugins, plugin = obedient()
    sent = message(b"body", "open", user="alice", priority=7)
    plugins.sent(sent)
    assert sent.annotations == {"seen": 1}
    view = plugin.views[0]
    assert (view.address, view.user, view.protocol, view.durable, view.priority) == ("open", "alice", "STOMP", True, 7)
    assert (view.size, view.large) == (sent.size, False)
    refused = message(b"x", "closed")
    with pytest.raises(SendError, match="plugin 'mine' refuses the message: it is closed"):
        plugins.sent(refused)
    assert refused.annotations is None
    (shown,) = plugins.describe()
    assert (shown["calls"], shown["refused"], shown["failures"], shown["running"]) == (2, 1, 0, True)


@pytest.mark.parametrize("name", ["", "a b", "_AMQ_ORIG_ADDRESS", "JMSPriority", "x" * 101, 7])
def test_notes_have_names_of_their_own(name: Any) -> None:
    plugins, plugin = obedient()
    plugins.sent(message())
    with pytest.raises(ValueError, match="not the name of a note"):
        plugin.views[0].annotate(name, 1)
    with pytest.raises(ValueError, match="a note is text"):
        plugin.views[0].annotate("fine", True)


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(3), KeyboardInterrupt(), RecursionError()])
@pytest.mark.parametrize("refuses", [False, True])
def test_whatever_a_plugin_raises_harms_nobody(
    error: BaseException, refuses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = running(lambda: Evil(error), refuses=refuses)
    plugins.happened("queue-created", {"queue": "q"})
    if refuses:
        with pytest.raises(SendError, match="plugin 'mine' failed: the message is refused"):
            plugins.sent(message())
    else:
        plugins.sent(message())
    plugins.start(HERE)
    plugins.stop()
    (shown,) = plugins.describe()
    assert (shown["running"], shown["failures"]) == (False, 3)
    assert shown["reason"].startswith("its start failed")
    assert (
        len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    )  # and no more for a minute


@pytest.mark.parametrize("refuses", [False, True])
def test_a_plugin_that_cannot_be_made_is_passed_by_or_nothing_is_taken(refuses: bool) -> None:
    def broken() -> Plugin:
        raise SystemExit("no")

    plugins = running(broken, refuses=refuses)
    plugins.start(HERE)
    plugins.happened("queue-created", {})
    assert plugins.looks_at_messages is refuses
    if refuses:
        with pytest.raises(SendError, match="does not run: nothing is taken without it"):
            plugins.sent(message())
    assert plugins.describe()[0]["reason"].startswith("it cannot be made")
    plugins.stop()


def test_a_call_that_takes_long_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "SLOW", -1.0)
    plugins, _ = obedient()
    for _ in range(5):
        plugins.sent(message())
    assert plugins.describe()[0]["slow"] == 5
    assert caplog.text.count("held the broker up") == 1


def test_what_is_not_overridden_costs_nothing() -> None:
    plugins = running(lambda: Plugin({}))
    plugins.happened("queue-created", {})
    assert (plugins.looks_at_messages, plugins.describe()[0]["calls"]) == (False, 0)


async def test_what_clients_send_is_shown_and_no_other(office: Office) -> None:
    plugins, plugin = obedient()
    post = await office.open()
    post.show(plugins.sent)
    office.queue("orders")
    office.queue("closed")
    post.send(message(b"1"))
    tx = post.begin()
    with pytest.raises(SendError):
        post.send(message(b"2", "closed"), tx)
    post.send(message(b"3"), tx)
    post.commit(tx)
    with pytest.raises(SendError):
        post.send(message(b"4", "closed"))
    post.receive(message(b"from a bridge", "closed"), 0)
    await office.stable()
    assert [post.message_count(post.queue(name)) for name in ("orders", "closed")] == [2, 1]
    assert len(plugin.views) == 4


class Guard(Plugin):
    """Keeps `secret` from who is not `boss`, and keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__({})
        self.shown: list[tuple[bytes, str, int, str | None]] = []

    def on_deliver(self, message: OfferedMessage) -> None:
        self.shown.append((message.body, message.queue, message.consumer, message.consumer_user))
        if message.body == b"secret" and message.consumer_user != "boss":
            raise RefusedError("not for you")


async def test_what_consumers_are_about_to_get_is_shown_and_withheld(office: Office) -> None:
    """It stays for others; one that only looks does not see it; what is no client is not asked about."""
    guard = Guard()
    plugins = running(lambda: guard)
    post = await office.open()
    post.guard(plugins.offered)
    queue = office.queue("orders")
    client, browser, bridge = Receiver(), Receiver(browsing=True), Receiver()
    client.origin = browser.origin = 7
    post.attach(queue, client)
    post.attach(queue, browser)
    for body in (b"1", b"secret", b"2"):
        post.send(message(b"\n\n" + body))
    await client.wait(2)
    await browser.wait(2)
    assert client.bodies == browser.bodies == [b"\n\n1", b"\n\n2"]
    assert sorted(guard.shown) == sorted((body, "orders", 7, None) for body in (b"1", b"secret", b"2") * 2)
    (shown,) = plugins.describe()
    assert (shown["calls"], shown["withheld"], shown["refused"]) == (6, 2, 0)
    post.attach(queue, bridge)
    await bridge.wait(1)
    assert bridge.bodies == [b"\n\nsecret"]
    assert len(guard.shown) == 6


@pytest.mark.parametrize("refuses", [False, True])
def test_a_guard_that_fails_is_passed_by_or_nothing_is_given(refuses: bool) -> None:
    class Failing(Plugin):
        def on_deliver(self, message: OfferedMessage) -> None:
            raise ValueError(message.queue)

    plugins = running(lambda: Failing({}), refuses=refuses)
    assert (plugins.looks_at_deliveries, plugins.looks_at_messages) == (True, False)
    assert plugins.offered(message(), "orders", 7, "alice") is not refuses

    def broken() -> Plugin:
        raise SystemExit("no")

    down = Plugins([Running("mine", broken, refuses=refuses, kind=Failing)])
    assert (down.looks_at_deliveries, down.looks_at_messages) == (True, False)
    assert down.offered(message(), "orders", 7, "alice") is not refuses
