"""A primary and its backups, without processes: who is taken, and when it goes on without one."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pollux.client import frames
from pollux.config.acceptors import Endpoint
from pollux.ha.active_passive import primary as module
from pollux.ha.active_passive.amqp_away import redirection
from pollux.ha.active_passive.primary import Backups, Primary
from pollux.ha.active_passive.promoter import Promoter
from pollux.ha.active_passive.promotion import Answer, Number, Proof, Record, Why
from pollux.ha.active_passive.ready import MARGIN, Granted
from pollux.ha.active_passive.settings import Settings
from pollux.ha.active_passive.standby import Standby
from pollux.ha.active_passive.statuses import Status
from pollux.ha.active_passive.turned_away import farewell, protocol_of
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.lease import Lease, Right, boot_clock
from pollux.store.mirror import Link
from pollux.wire.sniff import Protocol

if TYPE_CHECKING:
    from pathlib import Path

NODE = "0c" * 16
HERE, THERE = "10.0.0.1:5672", "10.0.0.2:5672"


def settings(**more: Any) -> Settings:
    others = {THERE: Endpoint("tcp", "10.0.0.2", 5672)}
    given: dict[str, Any] = {"backup_timeout": 1.0, "heartbeat": 0.05, "retry": 0.1, **more}
    return Settings(HERE, "10.0.0.1", 5672, others, None, f"{HERE},{THERE}", "", "all", **given)


class Serving:
    """A primary of epoch 2 with one backup in sync."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, grant: float = 0.0) -> None:
        given = settings(grant=grant)
        self.fenced: list[str] = []
        self.primary = Primary(path, 60.0, self.fenced.append, grant)
        self.backups = Backups(
            dict.fromkeys(("journal", "bindings", "large", "paging"), path),
            given,
            self.primary,
            about=dict,
            on_synced=lambda _: None,
            on_following=lambda _: None,
            superseded=lambda: "",
        )
        self.backups.loop = SimpleNamespace(call_soon_threadsafe=lambda *_: None)  # type: ignore[assignment]
        monkeypatch.setattr(Backups, "_has_ended", lambda *_: False)
        monkeypatch.setattr(module, "_LOOK", 0.005)
        now = boot_clock()
        self.primary.grant.given(now, now)
        self.primary.write(LocalState(NODE, 3, 2, complete=True, replica=False, primary=HERE))
        self.primary.serves(Right(bytes.fromhex(NODE), 2, "promoted", boot_clock()))
        self.link = Link("helena", lambda: None)
        self.backups._addresses[self.link] = THERE
        self.backups.mirror.attach(self.link)
        assert self.backups._admit(self.link)

    @property
    def heirs(self) -> tuple[str, ...]:
        """Who may be promoted in its place, as its disk says."""
        return self.primary.state.heirs if self.primary.state is not None else ()

    @property
    def sequence(self) -> int:
        """The number of its data, as its disk says."""
        return self.primary.state.sequence if self.primary.state is not None else 0

    def ask(self, **content: object) -> str:
        """Why a member is not taken."""
        refusals: list[str] = []
        conversation: Any = SimpleNamespace(
            accept=lambda *_, **__: None,
            grant=lambda *_: None,
            refuse=lambda _channel, text, _code: refusals.append(text),
        )
        asks = {"id": "x", "name": "helena", "pid": 7, "node_id": NODE, "sequence": 3, "replicate": "all"}
        self.backups.open(conversation, 1, {**asks, "address": THERE, **content})
        return "".join(refusals)

    def sync(self) -> threading.Thread:
        """Write something that has to be on all copies."""
        writer = threading.Thread(target=self.backups.mirror.wait, args=(self.backups.mirror.number,), daemon=True)
        writer.start()
        return writer


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    return Serving(tmp_path, monkeypatch)


def test_a_member_with_other_terms_or_another_list_is_refused_at_the_handshake(serving: Serving) -> None:
    """Qpid shuts the backup down; here it says why, and asks again.

    A backup whose heartbeats are longer would be ready for longer than its primary waits.
    """
    assert serving.ask() == ""
    level = serving.ask(replicate="none")
    assert "its ha-replicate is 'none', here it is 'all': give all brokers of the cluster the same" in level
    terms = serving.backups._settings.terms
    assert serving.ask(id="y", terms=terms) == ""
    for option in terms:
        assert f"its {option} is '77', here it is" in serving.ask(terms={**terms, option: "77"})
    assert "it asked in a way that cannot be read" in serving.ask(terms=7)
    for address in ("10.0.0.9:5672", "", None):
        assert "which is none of the others in ha-brokers-url here" in serving.ask(address=address)


def test_a_member_with_data_of_a_later_epoch_is_not_overwritten(serving: Serving) -> None:
    """It was promoted, or followed who was: this broker is the one that was replaced."""
    assert serving.ask(data_epoch=2) == ""
    assert "somebody was promoted in this broker's place" in serving.ask(data_epoch=3)


def test_a_lost_backup_is_on_record_as_no_heir_before_anything_is_confirmed_without_it(serving: Serving) -> None:
    assert (serving.heirs, serving.sequence) == ((THERE,), 3)
    assert serving.backups.counts(THERE)
    serving.backups.mirror.lose(serving.link, "gone")
    assert (serving.heirs, serving.sequence) == ((), 4)
    assert serving.backups.granted.left(THERE, boot_clock()) == 0, "it was waited for that long"


@pytest.mark.parametrize("heartbeat", [0.05, 0.5, 5.0, 120.0])
def test_a_backup_that_hangs_costs_its_lease_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heartbeat: float
) -> None:
    """It is waited for, and asked, while its lease runs out: two heartbeats from its last answer, and clocks' part."""
    serving = Serving(tmp_path, monkeypatch)
    given = settings(heartbeat=heartbeat)
    monkeypatch.setattr(serving.backups, "_settings", given)
    serving.backups.granted = Granted(given.lease)
    time = SimpleNamespace(now=0.0)

    def passes(seconds: float) -> None:
        time.now += seconds

    def nobody_says_anything() -> str:
        passes(given.last_look)
        return ""

    monkeypatch.setattr(module, "boot_clock", lambda: time.now)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=passes))
    monkeypatch.setattr(serving.backups, "_superseded", nobody_says_anything)
    serving.primary.lease = Lease(3600, lambda: 0.0)
    serving.primary.lease.extend(0.0)
    assert serving.backups.counts(THERE)
    # It hangs at once; the mirror loses patience, and who is to settle that begins.
    passes(given.patience)
    serving.backups.mirror.lose(serving.link, "it was waited for")
    assert serving.heirs == ()
    assert 2 * heartbeat <= time.now <= 2 * heartbeat * MARGIN + module._LOOK


def test_nobody_goes_on_without_an_heir_before_a_word_of_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the heir may have been promoted."""
    serving = Serving(tmp_path, monkeypatch, grant=60.0)
    losing = threading.Thread(target=serving.backups.mirror.lose, args=(serving.link, "gone"), daemon=True)
    losing.start()
    losing.join(0.3)
    assert losing.is_alive()
    assert THERE in serving.heirs
    now = boot_clock()
    assert serving.primary.grant.given(now, now)
    losing.join(30)
    assert not losing.is_alive()
    assert not serving.heirs


def test_a_primary_whose_grant_is_over_confirms_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = Serving(tmp_path, monkeypatch, grant=0.2)
    assert serving.primary.lease.held()
    assert serving.primary.lease.left() <= 0.2
    serving.backups.mirror.lose(serving.link, "gone")
    assert serving.backups.mirror.refused is not None, "the heir may have been promoted, and no word came"
    assert not serving.primary.lease.held()


def test_a_promotion_is_judged_by_what_is_on_the_disk(tmp_path: Path) -> None:
    """The primary raised the number of its heirs' data after this one had become ready: nobody told the rest of it."""
    standby = Standby({"journal": tmp_path}, settings(), lambda work: work.close())
    local.write(tmp_path, LocalState(NODE, 1, 1, complete=True, replica=True, primary=THERE, heirs=(HERE, THERE)))
    asyncio.run(standby.read())
    local.write(tmp_path, LocalState(NODE, 2, 1, complete=True, replica=True, primary=THERE, heirs=(HERE,)))
    follow: Any = SimpleNamespace(hold=lambda: asyncio.sleep(0), again=lambda: None)
    other = Record(NODE, Number(1, 2), complete=True, primary=THERE, heirs=frozenset({HERE}))

    async def others(_: object) -> list[Answer]:
        return [Answer(THERE, Status.JOINING, other)]

    primary = Primary(tmp_path, 60.0, lambda _: None)
    promoter = Promoter({"journal": tmp_path}, HERE, "here", standby, primary, min_in_sync=0, ask_others=others)
    verdict = asyncio.run(promoter.judged(Status.JOINING, Proof(), follow))
    assert verdict.why is Why.PROMOTED, verdict.reason


@pytest.mark.parametrize(("epoch", "why", "turned"), [(2, Why.ANOTHER_SERVES, ["10.0.0.2"]), (1, Why.PROMOTED, [])])
def test_who_serves_since_it_was_asked_is_followed_after_the_refusal(
    tmp_path: Path, epoch: int, why: Why, turned: list[str]
) -> None:
    """Breaks when a word is lost that comes while a promotion is judged: a machine without power is waited for."""
    standby = Standby({"journal": tmp_path}, settings(), lambda work: work.close())
    local.write(tmp_path, LocalState(NODE, 1, 1, complete=True, replica=True, primary=THERE, heirs=(HERE, THERE)))
    done: list[str] = []
    follow: Any = SimpleNamespace(
        hold=lambda: asyncio.sleep(0),
        again=lambda: done.append("again"),
        turn=lambda endpoint: done.append(endpoint.host),
    )
    other = Record(NODE, Number(1, 1), complete=True, primary=THERE, heirs=frozenset({HERE, THERE}))
    standby.told["of a promotion before this one"] = 9

    async def others(_: object) -> list[Answer]:
        standby.told[THERE] = epoch
        return [Answer(THERE, Status.READY, other)]

    primary = Primary(tmp_path, 60.0, lambda _: None)
    promoter = Promoter({"journal": tmp_path}, HERE, "here", standby, primary, min_in_sync=0, ask_others=others)
    verdict = asyncio.run(promoter.judged(Status.JOINING, Proof(), follow))
    assert (verdict.why, done) == (why, turned)


def test_a_backup_asks_whether_it_counts_as_soon_as_its_copy_is_complete(tmp_path: Path) -> None:
    """Breaks when it waits for its next turn: a second in which nobody may promote it."""
    standby = Standby({"journal": tmp_path}, settings(heartbeat=60.0), lambda work: work.close())
    sent: list[bytes] = []
    conversation: Any = SimpleNamespace(
        open=lambda *_, **__: 1, credit=lambda _: 1, send=lambda _, payload: sent.append(payload)
    )
    standby.linked(conversation)
    standby.ask(100.0)
    standby.ask(100.1)
    assert len(sent) == 1
    local.write(tmp_path, LocalState(NODE, 1, 1, complete=True, replica=True, primary=THERE, heirs=(HERE, THERE)))
    asyncio.run(standby.synced())
    standby.ask(100.2)
    assert len(sent) == 2


@pytest.mark.parametrize("change", ["complete", "begun"])
async def test_what_was_read_before_the_copy_changed_is_not_what_is_known_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Somebody asks this member, which reads its data, just as its copy is complete, or as a primary takes it."""
    before = LocalState(NODE, 1, 1, complete=change == "begun", replica=True, primary=THERE, heirs=(HERE, THERE))
    after = LocalState(NODE, 1, 1, complete=change == "complete", replica=True, primary=THERE, heirs=(HERE, THERE))
    has_read, go, real, reads = threading.Event(), threading.Event(), local.read, []

    def slowly(journal: Path) -> LocalState | None:
        found = real(journal)
        reads.append(found)
        if len(reads) == 1:
            has_read.set()
            assert go.wait(30)
        return found

    monkeypatch.setattr(local, "read", slowly)
    standby = Standby({"journal": tmp_path}, settings(), lambda work: work.close())
    local.write(tmp_path, before)
    asked = asyncio.create_task(standby.read())
    assert await asyncio.to_thread(has_read.wait, 30)
    local.write(tmp_path, after)
    if change == "begun":
        standby.accepted({"address": THERE, "epoch": 1})
    else:
        synced = asyncio.create_task(standby.synced())
        await asyncio.wait([synced], timeout=0.1)  # it would be over
    go.set()
    await asked
    if change == "complete":
        await synced
    assert standby.record is not None
    assert standby.record.complete is after.complete


@pytest.mark.parametrize(
    ("head", "primary", "said"),
    [
        (b"\x10\x0f\x00\x04MQTT\x05", "h:1", b"\x20\x09\x00\x9c\x06\x1c\x00\x03h:1"),
        (b"\x10\x0f\x00\x04MQTT\x05", "", b"\x20\x03\x00\x88\x00"),
        (b"\x10\x0f\x00\x04MQTT\x04", "h:1", b"\x20\x02\x00\x03"),
        (b"\x10\x80\x01\x00\x06MQIsdp\x03", "h:1", b"\x20\x02\x00\x03"),
        (b"STOMP\n", "", b"ERROR\nmessage:this broker waits\ncontent-type:text/plain\n\nthe primary is not known\0"),
        (b"GET / HTTP/1.1\r\n", "h:1", b""),
        (b"nonsense", "h:1", b""),
    ],
)
def test_a_client_is_told_where_to_go(head: bytes, primary: str, said: bytes) -> None:
    assert farewell(head, primary) == said


@pytest.mark.parametrize(
    ("primary", "condition", "host", "port", "scheme"),
    [
        ("h:1", "amqp:connection:redirect", "h", 1, None),
        ("ssl:h:1", "amqp:connection:redirect", "h", 1, "amqps"),
        ("192.0.2.1", "amqp:connection:redirect", "192.0.2.1", 5672, None),
        ("tcp:[::1]:7,h:2", "amqp:connection:redirect", "::1", 7, None),
        ("", "amqp:connection:forced", None, None, None),
        ("what a broken member says", "amqp:connection:forced", None, None, None),
    ],
)
def test_an_amqp_client_is_told_where_to_go(
    primary: str, condition: str, host: str | None, port: int | None, scheme: str | None
) -> None:
    """Open, with the property that says a close follows, and close."""
    opened, closed = frames.Reader().receive(redirection(primary))
    properties = opened.field(9)
    assert isinstance(properties, dict)
    assert properties["amqp:connection-establishment-failed"] is True
    error = frames.error_of(closed.field(0))
    assert error is not None
    assert error.condition == condition
    assert (error.info.get("network-host"), error.info.get("port"), error.info.get("scheme")) == (host, port, scheme)


def test_more_is_waited_for_until_the_version_is_there() -> None:
    connect = b"\x10\x0f\x00\x04MQTT\x05"
    assert [protocol_of(connect[:size]) for size in range(len(connect))] == [None] * len(connect)
    assert protocol_of(connect) is Protocol.MQTT
    assert protocol_of(b"POLLUX") is Protocol.CORE


def test_with_a_least_number_of_copies_nothing_is_confirmed_alone(serving: Serving) -> None:
    """min-in-sync: the writer waits until another copy is complete."""
    mirror = serving.backups.mirror
    mirror.require(1)
    mirror.confirm(serving.link, serving.link.last)
    writer = serving.sync()
    writer.join(30)
    assert not writer.is_alive(), "one copy has it"
    mirror.lose(serving.link, "gone")
    writer = serving.sync()
    writer.join(0.2)
    assert writer.is_alive()
    other = Link("castor", lambda: None)
    serving.backups._addresses[other] = THERE
    mirror.attach(other)
    assert serving.backups._admit(other)
    writer.join(30)
    assert not writer.is_alive()
    mirror.require(0)
