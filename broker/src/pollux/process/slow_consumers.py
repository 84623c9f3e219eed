"""Find consumers that do not keep up (``slow-consumer-*`` of an address), log them, and where asked disconnect them.

A consumer is slow when for a whole check period it had more messages to take than the threshold wants of it, took
fewer, and some are left. One that waits for messages is never slow, and neither is one whose share others took.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from msgspec import Struct

from pollux.config.address_settings import SlowConsumerPolicy
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.audit import Trail
    from pollux.config.address_settings import AddressSetting, AddressSettings
    from pollux.process.connection import Connection
    from pollux.routing.consumer import Attachment
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace

logger = logging.getLogger("pollux.queue")


class Sample(Struct):
    """Hold one look at a consumer: ``settled`` messages since it attached, ``left`` that it holds or could get."""

    when: float
    settled: int
    left: int
    #: It was found slow, and that was said.
    slow: bool = False


def is_slow(before: Sample, now: Sample, threshold: float) -> bool:
    """Decide between two samples; ``threshold`` is messages per second. Pure."""
    wanted = threshold * (now.when - before.when)
    return before.left >= wanted and now.settled - before.settled < wanted and now.left > 0


class SlowConsumers:
    """Call :meth:`check` every second. ``connection`` finds a connection by a consumer's origin."""

    def __init__(
        self,
        space: AddressSpace,
        clock: Callable[[], float],
        connection: Callable[[int], Connection | None],
        configured: Callable[[], Sequence[AddressSetting]],
        trail: Trail,
    ) -> None:
        """``configured``: the address-settings as they are now; without a threshold in any, a check costs nothing."""
        self._trail = trail
        self._space = space
        self._configured = configured
        self._clock = clock
        self._connection = connection
        self._samples: WeakKeyDictionary[Attachment, Sample] = WeakKeyDictionary()

    def check(self) -> None:
        """Look at every consumer whose period is over."""
        if not any("slow_consumer_threshold" in setting.values for setting in self._configured()):
            return
        for queue in self._space.queues:
            if queue.consumer_count:
                settings = self._space.settings(queue.address)
                if settings.slow_consumer_threshold >= 0:
                    self._check_queue(queue, settings)

    def _check_queue(self, queue: Queue, settings: AddressSettings) -> None:
        now = self._clock()
        threshold = settings.slow_consumer_threshold / settings.slow_consumer_threshold_measurement_unit.seconds
        waiting = 0 if queue.paused else queue.message_count - queue.scheduled - queue.delivering
        for attachment in list(queue.attachments):
            before = self._samples.get(attachment)
            if before is not None and now - before.when < settings.slow_consumer_check_period:
                continue
            held = len(attachment.held)
            sample = Sample(now, attachment.taken - held, held + waiting)
            self._samples[attachment] = sample
            if before is not None and is_slow(before, sample, threshold):
                sample.slow = True
                self._found(queue, attachment, settings, sample, before)

    def _found(
        self, queue: Queue, attachment: Attachment, settings: AddressSettings, sample: Sample, before: Sample
    ) -> None:
        kill = settings.slow_consumer_policy is SlowConsumerPolicy.KILL
        connection = self._connection(attachment.consumer.origin)
        if not before.slow or kill:
            event(
                logger,
                logging.WARNING,
                "slow consumer",
                queue=queue.name,
                address=queue.address,
                connection=attachment.consumer.origin,
                user=connection.session.user if connection is not None and connection.session is not None else None,
                settled=sample.settled - before.settled,
                seconds=round(sample.when - before.when, 3),
                held=len(attachment.held),
                policy=settings.slow_consumer_policy.value,
            )
            self._trail.tell(
                "consumer-slow", queue=queue.name, address=queue.address, connection=attachment.consumer.origin
            )
        if kill and connection is not None:
            connection.shutdown(f"slow consumer of queue {queue.name!r} (slow-consumer-policy KILL)")
