"""Durable subscriptions that clients find again by name, as the engine's users tell others of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pollux.routing.queue import Queue


class Found(NamedTuple):
    """A subscription of another node: its address, its filter (empty: none), and whether it is for others' messages."""

    address: str
    selector: str
    no_local: bool = False


class Named:
    """Told of subscriptions of this broker. There is no other one here: a cluster has one that tells its nodes."""

    def used(self, queue: Queue) -> None:
        """A client takes from a subscription from now on."""

    def unused(self, queue: Queue) -> None:
        """A client does not any more; it may come again."""

    def over(self, name: str, address: str, user: str | None) -> None:
        """``user`` ended a subscription for good."""

    def find(self, name: str) -> Found | None:  # noqa: ARG002  (a cluster's)
        """Return a subscription that other nodes have; None: none has one."""
        return None
