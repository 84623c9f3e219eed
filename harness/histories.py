"""Generated histories of traffic over brokers that fail over, with faults planted and written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pollux.formats.ledger import HEADER, Confirmed, Entry, Fault, Received, Sent, encode

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random


@dataclass
class History:
    """Entries and what is wrong with them."""

    entries: list[Entry] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    duplicated: set[tuple[str, str]] = field(default_factory=set)
    phantom: set[str] = field(default_factory=set)
    reordered: set[str] = field(default_factory=set)
    two_lives: int = 0

    def write(self, path: Path, *, torn: str = "") -> Path:
        """As a ledger file, its last line perhaps torn."""
        path.write_text(HEADER + "".join(encode(entry) for entry in self.entries) + torn)
        return path


def generate(random: Random, name: str, size: int) -> History:
    """A producer, a queue, a node whose broker is replaced in the middle; some messages go wrong.

    Which ones is decided here and nowhere else, so that a test can say exactly what a judge must find.
    """
    history = History()
    clock = random.random() * 1000
    deliveries: list[Received] = []
    changeover = random.randrange(1, size)
    for number in range(size):
        clock += random.random() * 5
        broker, epoch = ("castor", 1) if number < changeover else ("pollux", 2)
        if number == changeover:
            history.entries.append(Fault(clock - 0.001, f"kill of castor ({name})"))
        identifier = f"{name}-{number}"
        queue = f"q.{name}"
        sent = Sent(clock, identifier, f"producer-{name}", name, number)
        history.entries.append(sent)
        if random.random() < 0.03:
            continue  # never confirmed, never received: nobody promised anything
        history.entries.append(Confirmed(clock + 0.5, identifier, f"node-{name}", broker, epoch))
        fate = random.random()
        if fate < 0.04:
            history.lost.add(identifier)
            continue
        deliveries.append(Received(0, identifier, queue, False, f"consumer-{name}", broker, epoch))
        if fate < 0.08:
            deliveries.append(Received(0, identifier, queue, False, f"consumer-{name}", broker, epoch))
            history.duplicated.add((identifier, queue))
        elif fate < 0.14:  # announced: no fault
            deliveries.append(Received(0, identifier, queue, True, f"consumer-{name}", broker, epoch))
    _reorder(random, deliveries, history)
    clock += 1
    for number, one in enumerate(deliveries):
        history.entries.append(one._replace(time=clock + number * 0.25))
    for number in range(random.randrange(2)):
        ghost = f"{name}-ghost-{number}"
        history.entries.append(Received(clock, ghost, f"q.{name}", True))
        history.phantom.add(ghost)
    if random.random() < 0.2:  # the old live confirms once more after its successor began
        late = f"{name}-late"
        history.entries.append(Sent(clock, late, f"producer-{name}", "", 0))
        history.entries.append(Confirmed(clock + 1, late, f"node-{name}", "castor", 1))
        history.entries.append(Received(clock + 2, late, f"q.{name}"))
        history.two_lives += 1
    return history


def _reorder(random: Random, deliveries: list[Received], history: History) -> None:
    """Swap some neighbours that are delivered once and first: exactly the one that comes second is out of order."""
    counts: dict[str, int] = {}
    for one in deliveries:
        counts[one.id] = counts.get(one.id, 0) + 1
    index = 0
    while index + 1 < len(deliveries):
        a, b = deliveries[index], deliveries[index + 1]
        if random.random() < 0.05 and counts[a.id] == counts[b.id] == 1:
            deliveries[index], deliveries[index + 1] = b, a
            history.reordered.add(a.id)
            index += 2
        else:
            index += 1
