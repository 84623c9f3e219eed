"""Which messages that are on disk only shall be read now: for consumers that take them, and for browsers.

Pure: it looks at the backlog and at where consumers are, and changes neither, but for noting what it asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pollux.routing.backlog import Backlog
    from pollux.routing.consumer import Attachment, Consumer
    from pollux.routing.spec import QueueAttributes

#: Messages in memory up to which a queue asks for more of what is on disk only.
HOT_LOW = 2000


class ReadAhead:
    """Decide what of the ``backlog`` of a queue is read for those ``attached``, of whom ``lookers`` only look."""

    def __init__(
        self,
        attributes: QueueAttributes,
        backlog: Backlog,
        attached: Mapping[Consumer, Attachment],
        lookers: Collection[Attachment],
    ) -> None:
        self.attributes = attributes
        self.backlog = backlog
        self.attached = attached
        self._lookers = lookers
        #: Bounds on what is read: messages and bytes, -1 for none.
        self.max_hot_messages = -1
        self.max_hot_bytes = -1

    def wanted(self, limit: int) -> list[int]:
        """Ids of the cold backlog to read now and pass to :meth:`Backlog.hydrate`; empty when none are needed.

        One request at a time: until ``hydrate`` is called the answer is empty.
        """
        for level in self.backlog.levels:
            if level.flight:
                return []
        room = self._room(limit)
        if room > 0:
            for level in self.backlog.levels:
                if level.cold_count:
                    return level.request(room)
        return []

    def _room(self, limit: int) -> int:
        """How many cold messages may be read now."""
        if self.backlog.last_values is not None or self.attributes.non_destructive:
            return limit  # such a queue is kept in memory as a whole
        if self.attributes.ring_size >= 0 and self.backlog.ring_surplus() > 0:
            return limit
        hot = sum([level.hot for level in self.backlog.levels])
        nobody = len(self.attached) == len(self._lookers)
        if nobody or (hot and 0 <= self.max_hot_bytes <= self.backlog.bytes):
            return 0
        if self.max_hot_messages >= 0:
            limit = min(limit, self.max_hot_messages - hot)
        return limit if hot < HOT_LOW or self._anyone_starves() else 0

    def wants_more(self, low: int) -> bool:
        """Would more messages (from pages) help the consumers?

        Not without consumers, nor while more than ``low`` wait, unless someone looked at all of those and found
        nothing (more) for itself.
        """
        return bool(self.attached) and (self.backlog.waiting <= low or self._anyone_starves())

    def _anyone_starves(self) -> bool:
        return any(self._starves(attachment) for attachment in self.attached.values())

    def _starves(self, attachment: Attachment) -> bool:
        return attachment.consumer.credit > 0 and all(
            attachment.cursors[level.priority] >= level.end for level in self.backlog.levels if level.hot
        )

    def looks(self, limit: int) -> list[tuple[Consumer, list[int]]]:
        """Browsers with credit that have come to messages on disk only, and the ids to read and show them.

        Nothing enters the queue for them. Each browser is asked for once until it is shown.
        """
        asked: list[tuple[Consumer, list[int]]] = []
        for attachment in self._lookers:
            consumer = attachment.consumer
            if not consumer.browsing or consumer.credit <= 0 or attachment.looking:
                continue
            for level in self.backlog.levels:
                position = attachment.cursors[level.priority]
                if not level.cold_count or level.following(position) >= 0:
                    continue
                found = level.cold_from(position, min(limit, consumer.credit))
                if found:
                    attachment.looking = found
                    attachment.looking_at = level.priority
                    asked.append((consumer, [number for _, number in found]))
                    break
        return asked
