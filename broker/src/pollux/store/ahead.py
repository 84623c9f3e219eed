"""Groups of records that are on this disk, and on their way to the copies that others keep.

The writer does not stand still until they are confirmed: it writes the next group meanwhile, as long as not too many
are under way. Groups become stable in order, and none before all copies that count have it. Without copies a group is
stable as soon as it is written.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.port import Files

#: Most groups that are written and not stable.
MOST = 8


class Group(NamedTuple):
    """Its last chunk, the number of its last synced change (0: nobody is waited for), and when that was written."""

    token: int
    number: int
    since: float


class Ahead:
    """Groups that are written and not stable. ``told`` is called, in any thread, when :meth:`stable` may have grown."""

    def __init__(self, files: Files, told: Callable[[], None]) -> None:
        self._files = files
        self._copies = files.copies()
        if self._copies is not None:
            self._copies.listen(told)
        self._number = 0
        #: Up to here everything is stable.
        self._stable = 0
        #: What the loop has not found stable yet, and what the writer has not.
        self._groups: deque[Group] = deque()
        self._under_way: deque[Group] = deque()

    # -- the writer's side

    def write(self, fd: int, data: bytes, offset: int, *, sync: bool) -> int:
        """Write a part of the group; with ``sync`` it is on this disk when this returns. How many bytes."""
        if self._copies is None or not sync:
            return self._files.write(fd, data, offset, sync=sync)
        written, self._number = self._copies.write_here(fd, data, offset)
        return written

    def written(self, token: int) -> bool:
        """All of the group that ends with this chunk is written; whether it is stable. Raises OSError."""
        copies = self._copies
        if copies is None:
            self.skipped(token)
            return True
        group = Group(token, self._number, copies.clock())
        self._number = 0
        self._under_way.append(group)
        # Before it is looked at: the copies' word may come in between, and is then seen here.
        self._groups.append(group)
        return copies.settled() >= group.number

    def skipped(self, token: int) -> None:
        """Nobody has to store this chunk: it is stable."""
        self._stable = token

    def patience(self) -> float | None:
        """How long the writer may do something else, seconds, until :meth:`wait`; None: as long as it likes."""
        if self._copies is None or not self._under_way:
            return None
        return max(0.0, self._under_way[0].since + self._copies.patience - self._copies.clock())

    def wait(self, most: int = MOST - 1) -> None:
        """Return when so many groups are under way at most, and none for too long.

        Raises OSError: nothing more will be stable.
        """
        groups, copies = self._under_way, self._copies
        if copies is None or not groups:
            return
        settled = copies.settled()
        while groups and groups[0].number <= settled:
            groups.popleft()
        while groups and (len(groups) > most or self.patience() == 0):
            group = groups.popleft()
            while copies.settled() < group.number:
                copies.wait(group.number, group.since)

    # -- the loop's side

    def due(self) -> bool:
        """Whether :meth:`stable` has grown, or fails. Any thread."""
        try:
            return self._copies is not None and self._groups[0].number <= self._copies.settled()
        except IndexError:
            return False
        except OSError:
            return True

    def stable(self) -> int:
        """Return up to which chunk everything is stable. Raises OSError: nothing more will be."""
        groups, copies = self._groups, self._copies
        if copies is not None and groups:
            settled = copies.settled()
            while groups and groups[0].number <= settled:
                self._stable = groups.popleft().token
        return self._stable
