"""Slows down repeated failed log-ins per source address and per user, in bounded memory.

Pure: time is passed in. It knows what failed, not what is still being checked: whoever asks sees to it that attempts
of one user from one source come one after the other (:mod:`pollux.engine.turns`).
Three gates, each for one way of guessing:

- one user from one source: attempts are checked one after the other, each further apart;
- many users from one source (spraying): the same, once more than two users failed from there;
- one user from many sources: a short pause (at most 1 s), so strangers cannot lock a user out.

Clients that share a source with a guesser, or with a program that has an old password, must go on working:
the spraying gate counts different users only, and whoever logged in from a source before is not held by it.
"""

from __future__ import annotations

import math
from collections import OrderedDict

#: Longest pause for a user that fails from many sources, seconds.
MAXIMUM_USER_DELAY = 1.0
#: Different users that may fail from one source before the source itself is slowed down.
FREE_USERS = 2
#: Failures are forgotten after this many seconds without another one.
FORGET_AFTER = 300.0
#: A log-in from a source vouches for that user and source this long, seconds.
TRUST_FOR = 86_400.0
#: Entries per table; the least recently used is forgotten first.
MAXIMUM_ENTRIES = 10_000
#: Failing users counted per source; more do not make it slower.
_COUNTED_USERS = FREE_USERS + 6


class _Record:
    __slots__ = ("failures", "last", "next", "users")

    def __init__(self) -> None:
        self.failures = 0
        self.last = 0.0
        self.next = 0.0
        self.users: set[str] = set()


_Table = OrderedDict[str, _Record]


class Throttle:
    """Who failed how often. ``reserve`` before a check, then ``failed`` or ``succeeded``.

    ``first`` is the pause after the first failure, doubled by each further one up to ``maximum`` (seconds).
    An attempt that would have to wait longer than ``maximum`` is refused unchecked.
    """

    __slots__ = ("_entries", "_first", "_maximum", "_pairs", "_sources", "_trusted", "_users")

    def __init__(self, first: float = 0.25, maximum: float = 10.0, entries: int = MAXIMUM_ENTRIES) -> None:
        self._first = first
        self._maximum = maximum
        self._entries = entries
        self._pairs: _Table = OrderedDict()
        self._sources: _Table = OrderedDict()
        self._users: _Table = OrderedDict()
        self._trusted: OrderedDict[str, float] = OrderedDict()

    @property
    def maximum(self) -> float:
        """Return the longest pause, seconds."""
        return self._maximum

    def reserve(self, source: str, user: str, now: float) -> float | None:
        """Seconds this attempt must wait before it is checked; None when it is to be refused unchecked.

        The place is taken: the next attempt waits behind it.
        """
        pair = pair_of(source, user)
        trusted = self.trusts(source, user, now)
        at = now
        queues: list[tuple[_Record, float]] = []
        record = self._get(self._pairs, pair, now)
        if record is not None:
            queues.append((record, self._delay(record.failures)))
        if not trusted:
            record = self._get(self._sources, source, now)
            if record is not None and len(record.users) > FREE_USERS:
                queues.append((record, self._delay(len(record.users) - FREE_USERS)))
            record = self._get(self._users, user[:256], now)
            if record is not None:
                # No queue here: each attempt waits at most this long, however many strangers try.
                at = max(at, min(record.next, now + MAXIMUM_USER_DELAY))
        for record, _ in queues:
            at = max(at, record.next)
        if at - now > self._maximum:
            return None
        for record, delay in queues:
            record.next = at + delay
        return at - now

    def trusts(self, source: str, user: str, now: float) -> bool:
        """Return whether this user has logged in from this source lately."""
        return now - self._trusted.get(pair_of(source, user), -math.inf) < TRUST_FOR

    def failed(self, source: str, user: str, now: float) -> int:
        """Count a failure; returns how many this user has had from this source lately."""
        record = self._touch(self._sources, source, now)
        if len(record.users) < _COUNTED_USERS:
            record.users.add(user[:64])
        record.next = max(record.next, now + self._delay(max(0, len(record.users) - FREE_USERS)))
        record = self._touch(self._users, user[:256], now)
        record.next = now + min(MAXIMUM_USER_DELAY, self._delay(record.failures))
        record = self._touch(self._pairs, pair_of(source, user), now)
        record.next = max(record.next, now + self._delay(record.failures))
        return record.failures

    def succeeded(self, source: str, user: str, now: float) -> None:
        """Trust this user, who logged in, from this source. Failures of other users there still count."""
        pair = pair_of(source, user)
        self._pairs.pop(pair, None)
        self._trusted[pair] = now
        self._trusted.move_to_end(pair)
        if len(self._trusted) > self._entries:
            self._trusted.popitem(last=False)

    def _touch(self, table: _Table, key: str, now: float) -> _Record:
        record = self._get(table, key, now)
        if record is None:
            record = table[key] = _Record()
            if len(table) > self._entries:
                table.popitem(last=False)
        table.move_to_end(key)
        record.failures += 1
        record.last = now
        return record

    def _get(self, table: _Table, key: str, now: float) -> _Record | None:
        record = table.get(key)
        if record is not None and now - record.last > FORGET_AFTER and record.next <= now:
            del table[key]
            return None
        return record

    def _delay(self, failures: int) -> float:
        return min(self._maximum, self._first * 2.0 ** min(failures - 1, 16)) if failures > 0 else 0.0

    def __len__(self) -> int:
        return len(self._pairs) + len(self._sources) + len(self._users) + len(self._trusted)


def pair_of(source: str, user: str) -> str:
    """The name of one user at one source."""
    # Names a client invents may be long; the tables' memory is bounded by count, so bound the key too.
    return f"{source}\0{user[:256]}"
