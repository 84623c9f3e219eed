"""The right to serve of a promoted broker, its durable set of heirs, and its backups.

A new set is on this disk, and on those of all heirs, before anything is confirmed without one that was in it.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pollux.ha.active_passive.grant import Grant
from pollux.ha.active_passive.ready import Granted
from pollux.ha.copies import local, replicas
from pollux.ha.copies.replicas import UnprovenError, mark_of
from pollux.ha.lease import Lease, Right, boot_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.cluster.link import Conversation
    from pollux.ha.active_passive.settings import Settings
    from pollux.ha.copies.live_side import LiveSide
    from pollux.ha.copies.local import LocalState
    from pollux.store.mirror import Link

#: Between two looks whether a lost backup has noticed, seconds.
_LOOK = 0.05
#: How long it may take to see whether its process is there, seconds.
_PROBE = 1.0


class Primary:
    """The holder of the right to serve (:class:`~pollux.ha.copies.replicas.Holder`). ``state``: our own data."""

    def __init__(self, journal: Path, lease: float, fence: Callable[[str], None], grant: float = 0.0) -> None:
        """``lease`` and ``grant`` in seconds: how long it may stand still, and serves by one word."""
        self.lease = Lease(lease, boot_clock)
        self.grant = Grant(grant)
        self.right: Right | None = None
        self.state: LocalState | None = None
        self._journal = journal
        self._fence = fence
        self._marking = threading.RLock()
        #: Tells copies that are not heirs any more apart from ours; the backups set it, who know who is in sync.
        self.raise_sequence: Callable[[Callable[[dict[str, object]], None]], int]

    @property
    def marking(self) -> threading.RLock:
        """Held while the set changes."""
        return self._marking

    def mark(self) -> dict[str, object]:
        """Return what a copy that becomes complete now is told."""
        if self.state is None:
            raise UnprovenError("this member does not serve")
        return mark_of(self.state)

    def write(self, state: LocalState) -> None:
        """Have this state on disk. Blocking. Raises OSError."""
        with self._marking:
            local.write(self._journal, state)
            self.state = state

    def serves(self, right: Right) -> None:
        """Begin to serve."""
        self.extend(right.began)
        self.right = right

    def extend(self, now: float) -> bool:
        """Go on for a lease from now, but no longer than was granted; False: it is over."""
        until = self.grant.word.until
        return self.lease.extend(now if until is None else max(0.0, min(now, until - self.lease.seconds)))

    def set_heirs(self, heirs: frozenset[str], tell: Callable[[dict[str, object]], None]) -> int:
        """Have other heirs from now on; with a higher number where one is gone. Blocking. Raises OSError."""
        with self._marking:
            if self.state is None:
                raise UnprovenError("this member does not serve")
            gone = frozenset(self.state.heirs) - heirs
            sequence = self.state.sequence + (1 if gone else 0)
            self.write(replace(self.state, sequence=sequence, heirs=tuple(sorted(heirs))))
            tell(mark_of(self.state))
            return sequence

    def fence(self, reason: str) -> None:
        """Confirm nothing any more."""
        self._fence(reason)

    def outvoted(self, reason: str) -> None:
        """Confirm nothing any more: nobody votes here."""
        self._fence(reason)


class Backups(replicas.Replicas):
    """A primary's backups, by their addresses."""

    _settings: Settings

    def __init__(
        self, roots: Any, settings: Settings, primary: Primary, *, superseded: Callable[[], str], **more: Any
    ) -> None:
        """``superseded``: who was promoted in our place, as far as anybody answers; it may block."""
        self._superseded = superseded
        super().__init__(roots, settings, primary, **more)
        self.granted = Granted(settings.lease)
        self._primary = primary
        primary.raise_sequence = self._raise
        self._addresses: dict[Link, str] = {}
        #: Heirs that are waited for at the beginning, and since when each has come no nearer.
        self.expected: dict[str, float] = {}
        self._nearer: dict[str, tuple[int, int]] = {}

    def open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> LiveSide | None:
        """Take a member that wants to follow, or refuse it."""
        serving = super().open(conversation, channel, content)
        if serving is not None:
            self._addresses[serving.link] = str(content["address"])
        return serving

    def _policys_problem(self, content: dict[str, Any]) -> str:
        address, level = str(content.get("address", ""))[:255], str(content.get("replicate", ""))[:32]
        if address not in self._settings.others:
            return (
                f"its address is {address or 'unknown'!r}, which is none of the others in ha-brokers-url here: give all"
                " brokers of the cluster the same ha-brokers-url"
            )
        state, epoch = self._primary.state, int(content.get("data_epoch", 0))
        if state is not None and epoch > state.epoch:
            return f"its data is of epoch {epoch}, ours of {state.epoch}: somebody was promoted in this broker's place"
        # Members of older versions tell the level alone.
        theirs, ours = {"ha-replicate": level, **dict(content.get("terms") or {})}, self._settings.terms
        for option, mine in ours.items():
            if (other := theirs.get(option, mine)) != mine:
                return (
                    f"its {option} is {str(other)[:32]!r}, here it is {str(mine)!r}: give all brokers of the cluster"
                    " the same"
                )
        return ""

    def address_of(self, link: Link) -> str:
        """Return the address of a backup."""
        return self._addresses.get(link, "")

    @property
    def in_sync(self) -> frozenset[str]:
        """The addresses of the backups without whose word nothing is confirmed."""
        return frozenset(self.address_of(link) for link in self.mirror.in_sync)

    def counts(self, address: str) -> bool:
        """Note that a backup is told that it counts, and say whether it may be. In the loop."""
        with self.mirror.lock:  # nobody is dropped meanwhile
            if address not in self.in_sync or not self._primary.lease.held():
                return False
            self.granted.answer(address, boot_clock())
            return True

    def look(self, now: float) -> None:
        """Note which of the expected come nearer, and that those in sync are expected no more. In the loop."""
        for address in self.in_sync:
            self.expected.pop(address, None)
        for serving in self.backups():
            address = self.address_of(serving.link)
            seen = (serving.copied, serving.link.confirmed)
            if address in self.expected and seen != self._nearer.get(address):
                self._nearer[address] = seen
                self.expected[address] = now

    def give_up(self, members: frozenset[str]) -> None:
        """Wait for these no more. Blocking. Raises OSError, UnprovenError."""
        with self._primary.marking:
            for address in members:
                self.expected.pop(address, None)
            self._primary.set_heirs(self.in_sync | frozenset(self.expected), self._tell)

    # -- in threads

    def _admit(self, link: Link) -> bool:
        """A backup is an heir on our disk before it is told that it is one."""
        with self._primary.marking:
            address = self.address_of(link)
            state = self._primary.state
            if not address or state is None or self._left or not self._primary.lease.held():
                return False
            self._primary.set_heirs(frozenset(state.heirs) | {address}, self._tell)
            return super()._admit(link)

    def _lost(self, link: Link, reason: str) -> bool:
        """Nothing is confirmed without a backup that may still take itself for ready."""
        address = self.address_of(link)
        # Whoever stood still, and was not fenced, may have lost its backup because that was promoted.
        if not self._left and (who := self._superseded()):
            self._primary.fence(f"backup {link.name} is lost, and {who}")
            return False
        # One that has come back has a complete copy again; one that is gone for certain knows nothing any more. It may
        # have been promoted while it was ready: then the resource manager says nothing more to us.
        noticed: float | None = None
        while not self._left and address not in self.in_sync:
            now = boot_clock()
            if self.granted.left(address, now) > 0:
                noticed = None
            elif noticed is None:
                noticed = now
            if noticed is not None and self._primary.grant.renewed_since(noticed):
                break
            if not self._primary.lease.held():
                return False
            if noticed is None and self._has_ended(address):
                self.granted.ended(address)
            time.sleep(_LOOK)
        done = super()._lost(link, reason)
        self._addresses.pop(link, None)
        return done

    def _has_ended(self, address: str) -> bool:
        endpoint = self._settings.others[address]
        try:
            socket.create_connection((endpoint.host, endpoint.port), _PROBE).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def _raise(self, tell: Callable[[dict[str, object]], None]) -> int:
        if not self._primary.lease.held():
            raise UnprovenError("the right to serve is lost")
        return self._primary.set_heirs(self.in_sync | frozenset(self.expected), tell)
