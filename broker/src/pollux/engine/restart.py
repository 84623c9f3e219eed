"""The start: addresses, queues and their contents as the store recovered them.

What the bindings lost and the journal still tells is made again. What nobody can name is kept as orphans
(:mod:`pollux.engine.orphans`): that a binding is not there is never taken for a deletion.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from pollux.engine.queue_records import ADDRESS, DROPPED, PAUSED, QUEUE, decode_queue, is_paused
from pollux.message import RoutingType
from pollux.routing.queue import Queue
from pollux.routing.selector import SelectorError
from pollux.routing.space import Address

if TYPE_CHECKING:
    from pollux.engine.address_manager import AddressManager
    from pollux.engine.due import DueQueues
    from pollux.engine.large_files import LargeFiles
    from pollux.engine.orphans import Orphans
    from pollux.engine.queue_records import QueueRecords
    from pollux.routing.space import AddressSpace
    from pollux.routing.spec import QueueSpec
    from pollux.store.recovered import Recovered

log = logging.getLogger("pollux.addresses")

#: Queues that a line of the log names.
_NAMED = 10


class Restart:
    """One start. ``problems``: what was wrong, in words."""

    def __init__(
        self,
        recovered: Recovered,
        *,
        space: AddressSpace,
        records: QueueRecords,
        address_manager: AddressManager,
        orphans: Orphans,
        large_files: LargeFiles,
        due: DueQueues,
    ) -> None:
        self._recovered = recovered
        self._space = space
        self._records = records
        self._address_manager = address_manager
        self._orphans = orphans
        self._large_files = large_files
        self._due = due
        self._known: dict[int, Queue] = {}
        #: Queues whose deletion is on record in the bindings, and perhaps not yet in the journal.
        self.dropped = {int(key) for kind, key in recovered.bindings if kind == DROPPED}
        self.problems: list[str] = []
        #: Queues of which only the bindings know.
        self.unfinished: list[Queue] = []

    def run(self) -> None:
        """Make addresses, queues and their contents; pages and duplicate ids come after it."""
        self._addresses()
        self._queues()
        self._lost_queues()
        self._contents()

    def _addresses(self) -> None:
        for (kind, key), value in self._recovered.bindings.items():
            if kind == ADDRESS:
                kept = msgspec.msgpack.decode(value)
                self._space.add_address(
                    Address(
                        key,
                        {RoutingType(each) for each in kept["routing_types"]},
                        auto_created=kept["auto_created"],
                        internal=kept["internal"],
                        configuration_managed=kept["configuration_managed"],
                    )
                ).used = True

    def _queues(self) -> None:
        for (kind, key), value in self._recovered.bindings.items():
            if kind == QUEUE:
                queue_id, spec = decode_queue(value)
                if queue_id in self.dropped:
                    self._records.forget_queue(key)  # the crash came in the middle of its deletion
                    continue
                queue = self._add(queue_id, spec)
                if queue_id not in self._recovered.queue_records:
                    # The crash came while it was made, or a version made it that kept it in the bindings only.
                    self.unfinished.append(queue)

    def _add(self, queue_id: int, spec: QueueSpec) -> Queue:
        routing = spec.routing_type or RoutingType.MULTICAST
        address = self._space.address(spec.address)
        if address is None:
            address = self._space.add_address(Address(spec.address, (routing,)))
        elif routing not in address.routing_types:
            address.routing_types.add(routing)  # an older record of the address is all that is left
        queue = self._restored(spec, queue_id)
        queue.used = True
        recovered = self._recovered
        if (PAUSED, spec.name) in recovered.bindings or is_paused(recovered.queue_records.get(queue_id)):
            queue.pause()
        self._address_manager.add_queue(queue)
        self._known[queue_id] = queue
        return queue

    def _restored(self, spec: QueueSpec, queue_id: int) -> Queue:
        """Return a queue of before. What earlier versions accepted as its filter does not keep a broker down."""
        settings = self._space.settings(spec.address)
        try:
            return Queue.create(spec, settings, queue_id)
        except SelectorError as error:
            queue = Queue.create(spec, settings, queue_id, strict=False)
            log.warning("queue %r keeps a filter that is no longer accepted and takes less: %s", spec.name, error)
            return queue

    def _lost_queues(self) -> None:
        """Make the queues again that the journal knows and the bindings do not."""
        again: list[str] = []
        for queue_id, value in self._recovered.queue_records.items():
            if queue_id in self._known or queue_id in self.dropped:
                continue
            _, spec = decode_queue(value)
            if self._space.queue(spec.name) is not None:
                # Another has its name by now: what is left of this one is for an operator to place.
                self._orphans.found(queue_id).spec = spec
                continue
            queue = self._add(queue_id, spec)
            self._address_manager.keep(queue)
            again.append(spec.name)
        if again:
            names = ", ".join(repr(name) for name in again[:_NAMED]) + (" and more" if len(again) > _NAMED else "")
            words = f"bindings: {len(again)} queues were missing and were made again from the journal: {names}"
            log.error("%s; addresses and MQTT sessions may be missing too: put the bindings file back", words)
            self.problems.append(words)

    def _contents(self) -> None:
        recovered = self._recovered
        counts: dict[int, dict[int, int]] = {}
        for (queue_id, message_id), count in recovered.delivery_counts.items():
            counts.setdefault(queue_id, {})[message_id] = count
        schedules: dict[int, dict[int, int]] = {}
        for (queue_id, message_id), deliver_at in recovered.schedules.items():
            schedules.setdefault(queue_id, {})[message_id] = deliver_at
        for queue_id, priorities in recovered.queues.items():
            found = self._known.get(queue_id)
            if found is not None:
                for priority in sorted(priorities, reverse=True):
                    found.restore(priority, priorities[priority], counts.get(queue_id), schedules.get(queue_id))
                if found.scheduled:
                    self._due.plan(found)
            elif queue_id not in self.dropped:
                orphan = self._orphans.found(queue_id)
                orphan.priorities = priorities
                orphan.delivery_counts = counts.get(queue_id, {})
                orphan.schedules = schedules.get(queue_id, {})
        for queue_id in self.dropped:
            # The crash may have come between the two records of the deletion.
            self._records.record_drop(queue_id)
            for ids in recovered.queues.get(queue_id, {}).values():
                self._large_files.release_cold(ids)
