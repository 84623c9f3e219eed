"""Answers others of the cluster, and Qpid's command line.

The channels are those of :mod:`pollux.ha.active_passive.questions`; here is what is asked and who does it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from pollux.cluster.link import Idle
from pollux.errors import InvalidRequestError
from pollux.ha.active_passive.questions import ADMIN, READY, SERVES, STATUS, Answerer, ReadyAnswerer
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Mapping

    from pollux.cluster.link import Conversation
    from pollux.ha.active_passive.primary import Backups
    from pollux.ha.active_passive.statuses import Status

logger = logging.getLogger("pollux.ha")


class Asked(Protocol):
    """A member, as far as others may ask it."""

    status: Status

    async def own_status(self) -> dict[str, Any]:
        """Return what it says of itself. Raises StoreError."""

    async def cluster(self) -> dict[str, Any]:
        """Return what it and all others are."""

    def heard_of(self, member: str, epoch: int) -> None:
        """Follow ``member``, which says that it serves since ``epoch``, if it waits and follows nobody newer."""

    async def promote(self, fenced: Iterable[str], discarded: Iterable[str]) -> dict[str, Any]:
        """Serve, if it may."""

    async def demote(self) -> dict[str, Any]:
        """Give the right to serve up."""


class Answers:
    """Answers for a member. ``do`` has something done beside; ``others`` are those of ha-brokers-url."""

    def __init__(
        self,
        member: Asked,
        backups: Backups,
        others: Container[str],
        do: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._member = member
        self._backups = backups
        self._others = others
        self._do = do

    @property
    def purposes(self) -> Mapping[str, Callable[[Conversation, int, dict[str, Any]], Any]]:
        """Who answers on which channel."""
        return {
            STATUS: self._tell_status,
            READY: self._tell_ready,
            SERVES: self._hear_who_serves,
            ADMIN: self._tell_admin,
        }

    def _tell_status(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Any:
        del content
        return self._answer(Answerer(conversation, channel, self._member.own_status()))

    def _tell_admin(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Any:
        return self._answer(Answerer(conversation, channel, self._administered(content)))

    def _answer(self, answerer: Answerer) -> Answerer:
        self._do(answerer.answer())
        return answerer

    async def _administered(self, content: dict[str, Any]) -> dict[str, Any]:
        """Do what Qpid's command line asks. Raises PolluxError, TypeError."""
        asked = content.get("ask")
        event(logger, logging.INFO, "asked by an administrator", ask=str(asked)[:32])
        if asked == "status":
            return {"status": self._member.status.value}
        if asked == "query":
            return await self._member.cluster()
        if asked == "promote":
            found = await self._member.promote(list(content.get("fenced", ())), list(content.get("discarded", ())))
            if not found["promoted"]:
                raise InvalidRequestError(found["reason"])
            return found
        if asked == "demote":
            return await self._member.demote()
        raise InvalidRequestError(f"{str(asked)[:32]!r} is not offered by this broker")

    def _tell_ready(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Any:
        if (address := self._member_accepted(conversation, channel, content)) is None:
            return None
        # It asks for the first time on this connection: it has dropped what it was told before.
        self._backups.granted.ended(address)
        return ReadyAnswerer(conversation, channel, address, self._backups.counts)

    def _hear_who_serves(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Any:
        if (address := self._member_accepted(conversation, channel, content)) is None:
            return None
        self._member.heard_of(address, int(content.get("epoch", 0)))
        return Idle()

    def _member_accepted(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> str | None:
        """Return the address of the member that has opened this; None: it is refused, as it is none."""
        address = str(content.get("member", ""))
        if address not in self._others:
            conversation.refuse(channel, "it is none of ha-brokers-url")
            return None
        conversation.accept(channel)
        return address
