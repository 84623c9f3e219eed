"""How often and when a message is delivered again after a delivery failed. Pure arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.address_settings import AddressSettings


def spread(seed: int) -> Callable[[], float]:
    """Numbers from 0 to 1 that are spread evenly: all that collision avoidance needs, and the same in every run.

    Steps of the golden ratio, from a start that is different for each seed.
    """
    state = seed * 0.7548776662466927 % 1.0

    def following() -> float:
        nonlocal state
        state = (state + 0.6180339887498949) % 1.0
        return state

    return following


class RedeliveryPolicy(Struct, frozen=True):
    """broker.xml's redelivery settings. Delays are milliseconds.

    ``max_attempts`` below 1: no limit. ``max_delay`` -1: ten times ``base_delay``. ``chance`` gives
    uniform numbers from 0 to 1; it spreads the delays by ``collision_avoidance`` (a fraction).
    """

    max_attempts: int = 10
    base_delay: int = 0
    multiplier: float = 1.0
    max_delay: int = -1
    collision_avoidance: float = 0.0
    chance: Callable[[], float] = field(default_factory=lambda: spread(0))

    @classmethod
    def of(cls, settings: AddressSettings, chance: Callable[[], float]) -> RedeliveryPolicy:
        """The policy of an address."""
        return cls(
            max_attempts=settings.max_delivery_attempts,
            base_delay=settings.redelivery_delay,
            multiplier=settings.redelivery_delay_multiplier,
            max_delay=settings.max_redelivery_delay,
            collision_avoidance=settings.redelivery_collision_avoidance_factor,
            chance=chance,
        )

    def exhausted(self, failures: int) -> bool:
        """Is a message that failed ``failures`` times a dead letter?"""
        return 0 < self.max_attempts <= failures

    def delay(self, failures: int) -> int:
        """Milliseconds until a message that failed ``failures`` times (1 or more) is delivered again."""
        if self.base_delay <= 0:
            return 0
        limit = self.max_delay if self.max_delay >= 0 else self.base_delay * 10
        try:
            delay = self.base_delay * self.multiplier ** max(failures - 1, 0)
        except OverflowError:
            delay = float(limit)
        if self.collision_avoidance > 0:
            delay += delay * self.collision_avoidance * (2 * self.chance() - 1)
        return int(min(max(delay, 0.0), limit))
