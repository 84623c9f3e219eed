"""The ledger: what producers and consumers saw, and the one function that judges whether the broker kept its word.

Every end-to-end test and drill writes a ledger beside its traffic: each id sent, each id the broker **confirmed**, each
id received, each fault. After every queue is drained, :func:`check` compares them. It is pure (entries in, verdict
out), knows no protocol and no broker, and shares no bookkeeping with the clients that produced the traffic.

File format, version 1: UTF-8 text, one entry per line, only ever appended, so several processes may write one file with
`O_APPEND` and a process killed half way through leaves at most one torn last line, which is ignored. Fields are
separated by one tab; texts must hold neither tab nor newline; an empty field means "not known". Times are milliseconds
of one monotonic clock, with decimals.

```
pollux-ledger 1                                                       first line of the file
S  <time> <id> <producer> <group> <sequence>                          handed to the broker
C  <time> <id> <node> <broker> <epoch>                                the broker confirmed it
R  <time> <id> <queue> <redelivered 0|1> <consumer> <broker> <epoch>  received
F  <time> <text>                                                      a fault was injected
```
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

HEADER = "pollux-ledger 1\n"


class Sent(NamedTuple):
    """A producer handed a message to the broker. `sequence` grows within (`producer`, `group`)."""

    time: float
    id: str
    producer: str = ""
    #: Messages of one producer and group must arrive in order; without a group order is not judged.
    group: str = ""
    sequence: int = 0


class Confirmed(NamedTuple):
    """The broker took responsibility for a message: receipt, PUBACK, accepted, commit."""

    time: float
    id: str
    node: str = ""
    broker: str = ""
    #: The activation of the broker that confirmed; None: not known, two lives are not judged.
    epoch: int | None = None


class Received(NamedTuple):
    """A consumer was given a message from a queue."""

    time: float
    id: str
    queue: str = ""
    redelivered: bool = False
    consumer: str = ""
    broker: str = ""
    epoch: int | None = None


class Fault(NamedTuple):
    """A fault that was injected on purpose."""

    time: float
    text: str


Entry = Sent | Confirmed | Received | Fault


class LedgerError(ValueError):
    """A ledger file does not follow its format; the text names the line."""


class Verdict(Struct, frozen=True):
    """The judgement on a ledger. Everything but the counts and `rto_ms` must be empty."""

    sent: int
    confirmed: int
    received: int
    #: (id, queue): confirmed and never received from that queue.
    lost: tuple[tuple[str, str], ...]
    #: (id, queue): received again without the redelivered flag.
    duplicated: tuple[tuple[str, str], ...]
    #: Received or confirmed, never sent.
    phantom: tuple[str, ...]
    #: Two activations of one node id that both confirmed at the same time, or under the same epoch, in words.
    two_lives: tuple[str, ...]
    #: (id before, id after): received in the wrong order within a producer's group.
    order_violations: tuple[tuple[str, str], ...]
    #: For each fault, milliseconds until a message sent after it was confirmed; None: never.
    rto_ms: tuple[float | None, ...]

    @property
    def ok(self) -> bool:
        """True when nothing was lost, duplicated, invented or reordered, and no two brokers lived at once."""
        return not (self.lost or self.duplicated or self.phantom or self.two_lives or self.order_violations)

    def __str__(self) -> str:
        """Return the verdict on one line, with an example of each violation."""
        parts = [f"sent {self.sent}, confirmed {self.confirmed}, received {self.received}"]
        for name in ("lost", "duplicated", "phantom", "two_lives", "order_violations"):
            found = getattr(self, name)
            parts.append(f"{name} {len(found)}" + (f" (first: {found[0]})" if found else ""))
        known = [value for value in self.rto_ms if value is not None]
        if known:
            parts.append(f"rto_ms at most {max(known):.0f}")
        if len(known) < len(self.rto_ms):
            parts.append(f"no confirmed send after {len(self.rto_ms) - len(known)} fault(s)")
        return "; ".join(parts)


def check(entries: Iterable[Entry], *, queues: Collection[str] = ("",)) -> Verdict:
    """Judge a history that ends with every queue drained.

    `queues` are those that each message must have been received from (one for ANYCAST; every subscription for
    MULTICAST). Entries may come in any order; they are judged by their times, and for equal times in the given order.
    """
    history = sorted(entries, key=lambda entry: entry.time)
    sent = {entry.id: entry for entry in history if isinstance(entry, Sent)}
    confirmed = [entry for entry in history if isinstance(entry, Confirmed)]
    received = [entry for entry in history if isinstance(entry, Received)]
    faults = [entry for entry in history if isinstance(entry, Fault)]

    confirmed_ids = dict.fromkeys(entry.id for entry in confirmed)
    seen: set[tuple[str, str]] = set()
    duplicated: dict[tuple[str, str], None] = {}
    for entry in received:
        key = (entry.id, entry.queue)
        if key in seen and not entry.redelivered:
            duplicated[key] = None
        seen.add(key)
    mentioned = (*confirmed_ids, *(entry.id for entry in received))
    phantom = dict.fromkeys(name for name in mentioned if name not in sent)
    return Verdict(
        sent=len(sent),
        confirmed=len(confirmed_ids),
        received=len(received),
        lost=tuple((name, queue) for name in confirmed_ids for queue in queues if (name, queue) not in seen),
        duplicated=tuple(duplicated),
        phantom=tuple(phantom),
        two_lives=tuple(_two_lives(confirmed)),
        order_violations=tuple(_order_violations(sent, received)),
        rto_ms=tuple(_recovery_times(faults, history)),
    )


def _two_lives(confirmed: list[Confirmed]) -> Iterator[str]:
    """Yield every pair of activations of one node that both confirmed within the same stretch of time or epoch."""
    spans: dict[str, dict[tuple[str, int], tuple[float, float]]] = defaultdict(dict)
    for entry in confirmed:
        if entry.epoch is None:
            continue
        lives = spans[entry.node]
        life = (entry.broker, entry.epoch)
        first, last = lives.get(life, (entry.time, entry.time))
        lives[life] = (min(first, entry.time), max(last, entry.time))
    for node, lives in spans.items():
        ordered = sorted(lives.items(), key=lambda item: item[1])
        for index, ((broker, epoch), (_, last)) in enumerate(ordered):
            for (other, other_epoch), (other_first, _) in ordered[index + 1 :]:
                if other_epoch == epoch:
                    yield f"node {node!r}: {broker} and {other} both confirmed in epoch {epoch}"
                elif other_first < last:
                    yield f"node {node!r}: {broker} (epoch {epoch}) and {other} (epoch {other_epoch}) confirmed at once"
                elif other_epoch < epoch:
                    yield f"node {node!r}: {other} confirmed in epoch {other_epoch} after {broker} did in epoch {epoch}"


def _order_violations(sent: dict[str, Sent], received: list[Received]) -> Iterator[tuple[str, str]]:
    """Yield receptions that came after a later message of the same producer, group and queue.

    Redelivered messages are left out: they come back when they come back.
    """
    newest: dict[tuple[str, str, str], Sent] = {}
    for entry in received:
        origin = sent.get(entry.id)
        if entry.redelivered or origin is None or not origin.group:
            continue
        key = (origin.producer, origin.group, entry.queue)
        before = newest.get(key)
        if before is not None and origin.sequence < before.sequence:
            yield before.id, origin.id
        else:
            newest[key] = origin


def _recovery_times(faults: list[Fault], history: list[Entry]) -> Iterator[float | None]:
    """Yield for each fault how long it took until a message sent after it was confirmed.

    A confirm is of the last attempt before it: one of an attempt before the fault says nothing, also when the message
    was sent again meanwhile.
    """
    attempts: dict[str, float] = {}
    answered: list[tuple[float, float]] = []
    for entry in history:
        if isinstance(entry, Sent):
            attempts[entry.id] = entry.time
        elif isinstance(entry, Confirmed) and entry.id in attempts:
            answered.append((entry.time, attempts[entry.id]))
    for fault in faults:
        yield next((time - fault.time for time, sent in answered if sent >= fault.time), None)


# -- the file format ----------------------------------------------------------------------------------------------


def encode(entry: Entry) -> str:
    """Return an entry as one line of a ledger file, newline included; LedgerError if a text cannot be written."""
    fields: tuple[object, ...]
    match entry:
        case Sent():
            fields = ("S", *entry)
        case Confirmed():
            fields = ("C", *entry)
        case Received():
            fields = ("R", *entry)
        case Fault():
            fields = ("F", *entry)
    words = ["" if field is None else str(int(field)) if isinstance(field, bool) else str(field) for field in fields]
    if any("\t" in word or "\n" in word for word in words):
        raise LedgerError(f"a text of {entry!r} holds a tab or a newline")
    return "\t".join(words) + "\n"


def decode(text: str) -> Iterator[Entry]:
    """Yield the entries of a ledger file's text; a last line without its newline is ignored (its writer was killed)."""
    if not text.startswith(HEADER):
        if HEADER.startswith(text):
            return
        raise LedgerError(f"line 1: not a ledger file of version 1: {text[:40]!r}")
    lines = text.split("\n")
    for number, line in enumerate(lines[1:-1], start=2):
        try:
            yield _decode_line(line.split("\t"))
        except (ValueError, TypeError, IndexError) as error:
            raise LedgerError(f"line {number}: not an entry: {line[:100]!r}") from error


def _decode_line(fields: list[str]) -> Entry:
    kind, time, *rest = fields
    match kind, rest:
        case "S", [name, producer, group, sequence]:
            return Sent(float(time), name, producer, group, int(sequence))
        case "C", [name, node, broker, epoch]:
            return Confirmed(float(time), name, node, broker, int(epoch) if epoch else None)
        case "R", [name, queue, ("0" | "1") as redelivered, consumer, broker, epoch]:
            again = redelivered == "1"
            return Received(float(time), name, queue, again, consumer, broker, int(epoch) if epoch else None)
        case "F", [text]:
            return Fault(float(time), text)
    raise ValueError(kind)
