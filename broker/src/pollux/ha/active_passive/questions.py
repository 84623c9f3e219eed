"""The questions of members on channels of their own: what one is, and whether a backup still counts.

``ha-status``: a question without content; the answer is in what accepts the channel. ``ha-ready``: a backup sends the
time by its own clock (8 bytes, a double) again and again, and its primary sends it back as long as the backup is one of
those without whose word nothing is confirmed. ``ha-serves``: a new primary tells the others that it is one.
``ha-admin``: what Qpid's command line asks of a broker. See docs/core-protocol.md.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pollux.cluster.connector import ClusterConnector, UnreachableError
from pollux.cluster.link import Idle
from pollux.errors import PolluxError
from pollux.ha.active_passive.promotion import Answer, Number, Record
from pollux.ha.active_passive.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping

    from pollux.cluster.link import Conversation, CoreHub
    from pollux.config.acceptors import Endpoint
    from pollux.ha.active_passive.settings import Settings

ADMIN, STATUS, READY, SERVES = "ha-admin", "ha-status", "ha-ready", "ha-serves"
_TIME = struct.Struct("<d")
_WINDOW = 4096
#: How long it takes to hear from somebody who answers, when all others have, seconds.
AT_ONCE = 0.1


class RefusedError(PolluxError):
    """The other broker does not do what was asked; the text is its reason."""


class BrokenOffError(UnreachableError):
    """The other broker was there, and ended the connection before it had answered."""


class Question(Idle):
    """A channel that is opened for its answer. ``why``: with what code and text the other end refused it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.why = ("", "")

    def accepted(self, content: dict[str, Any]) -> None:
        if not self.answer.done():
            self.answer.set_result(content)

    def closed(self, code: str, text: str) -> None:
        self.why = (code, text)
        if not self.answer.done():
            self.answer.set_result(None)


async def _asked(
    connector: ClusterConnector, endpoint: Endpoint, seconds: float, purpose: str, content: Mapping[str, object]
) -> Question:
    """Return the question when it is answered or refused. Raises UnreachableError, TimeoutError."""
    link = await connector.connect(endpoint, seconds)
    question = Question()
    try:
        link.conversation.open(question, purpose, **content)
        async with asyncio.timeout(seconds):
            await question.answer
    finally:
        link.close("asked")
    return question


async def ask_as_admin(
    connector: ClusterConnector, endpoint: Endpoint, seconds: float, content: Mapping[str, object]
) -> dict[str, Any]:
    """Return what a broker answers to its administrator (``ask``: status, query, promote or demote).

    Raises UnreachableError, BrokenOffError, TimeoutError, and RefusedError where it says no.
    """
    question = await _asked(connector, endpoint, seconds, ADMIN, content)
    if (found := question.answer.result()) is not None:
        return found
    code, text = question.why
    if code != "refused":
        raise BrokenOffError(f"{code}: {text}" if text else code)
    raise RefusedError(text)


class Answerer(Idle):
    """The end that is asked: refuses with the reason, or accepts with what came of it. ``work`` does what is asked."""

    def __init__(self, conversation: Conversation, channel: int, work: Awaitable[dict[str, Any]]) -> None:
        self._conversation = conversation
        self._channel = channel
        self._work = work
        self._gone = False

    def closed(self, code: str, text: str) -> None:
        """Nobody waits for the answer any more; what was asked is done all the same."""
        del code, text
        self._gone = True

    async def answer(self) -> None:
        """Do what is asked, and tell."""
        try:
            found = await self._work
        except (PolluxError, TypeError, ValueError) as error:
            if not self._gone:
                self._conversation.refuse(self._channel, str(error))
            return
        if not self._gone:
            self._conversation.accept(self._channel, **found)
            self._conversation.flush()


async def ask(connector: ClusterConnector, member: str, endpoint: Endpoint, seconds: float) -> Answer:
    """Return what another member says of itself, or that it says nothing within ``seconds``."""
    try:
        content = (await _asked(connector, endpoint, seconds, STATUS, {})).answer.result()
        return _answer(member, content) if content is not None else Answer(member)
    except UnreachableError as error:
        return Answer(member, absent=error.refused)
    except (TimeoutError, KeyError, TypeError, ValueError):
        return Answer(member)


class OtherMembers:
    """The other members of the cluster, as this one asks and tells them."""

    def __init__(self, hub: CoreHub, settings: Settings) -> None:
        self._connector = ClusterConnector(hub)
        self._settings = settings

    async def ask(self, seconds: float | None = None, off: Container[str] = ()) -> list[Answer]:
        """Return what each of them says of itself, or that it says nothing within ``seconds``.

        ``off``: whose machines are said to be off. Nobody waits for them, but if that is wrong they say so at once.
        """
        limit = self._settings.connect_timeout if seconds is None else seconds
        asked = {
            name: asyncio.ensure_future(ask(self._connector, name, endpoint, limit))
            for name, endpoint in self._settings.others.items()
        }
        try:
            await asyncio.gather(*(each for name, each in asked.items() if name not in off))
            if silent := [each for name, each in asked.items() if name in off]:
                await asyncio.wait(silent, timeout=AT_ONCE)
            return [each.result() if each.done() else Answer(name) for name, each in asked.items()]
        finally:
            for each in asked.values():
                each.cancel()

    async def tell(self, epoch: int) -> None:
        """Tell them that this member serves since ``epoch``: one that is not reached looks for it by itself."""
        content = {"member": self._settings.me, "epoch": epoch}

        async def tell(endpoint: Endpoint) -> None:
            with suppress(UnreachableError, TimeoutError):
                await _asked(self._connector, endpoint, self._settings.connect_timeout, SERVES, content)

        await asyncio.gather(*map(tell, self._settings.others.values()))


def answer_content(status: Status, record: Record | None) -> dict[str, Any]:
    """Return what a member says of itself."""
    if record is None:
        return {"status": status.value}
    return {
        "status": status.value,
        "node_id": record.node_id,
        "epoch": record.number.epoch,
        "sequence": record.number.sequence,
        "complete": record.complete,
        "primary": record.primary,
        "heirs": sorted(record.heirs),
    }


def _answer(member: str, content: dict[str, Any]) -> Answer:
    status = Status(content["status"])
    if "node_id" not in content:
        return Answer(member, status)
    number = Number(int(content["epoch"]), int(content["sequence"]))
    heirs = frozenset(map(str, content["heirs"]))
    record = Record(str(content["node_id"]), number, bool(content["complete"]), str(content["primary"]), heirs)
    return Answer(member, status, record)


class ReadyAsker(Idle):
    """The backup's end: asks again every ``period`` seconds; ``on_answer`` gets when an answer was asked for."""

    def __init__(self, conversation: Conversation, member: str, on_answer: Callable[[float], None]) -> None:
        self._conversation = conversation
        self._on_answer = on_answer
        self._ended = False
        self._channel = conversation.open(self, READY, member=member)

    def accepted(self, content: dict[str, Any]) -> None:
        """Let the primary answer."""
        del content
        self._conversation.grant(self._channel, _WINDOW)

    def ask(self, now: float) -> None:
        """Ask, if the last questions were taken."""
        if not self._ended and self._conversation.credit(self._channel) > 0:
            self._conversation.send(self._channel, _TIME.pack(now))

    def data(self, payload: bytes) -> None:
        """Count an answer."""
        self._conversation.grant(self._channel, len(payload))
        if len(payload) == _TIME.size:
            self._on_answer(_TIME.unpack(payload)[0])

    def closed(self, code: str, text: str) -> None:
        """Ask no more."""
        del code, text
        self._ended = True


class ReadyAnswerer(Idle):
    """The primary's end. ``counts(member)`` notes that it is answered, and says whether it may be."""

    def __init__(self, conversation: Conversation, channel: int, member: str, counts: Callable[[str], bool]) -> None:
        self._conversation = conversation
        self._channel = channel
        self._member = member
        self._counts = counts
        conversation.grant(channel, _WINDOW)

    def data(self, payload: bytes) -> None:
        """Answer, if the backup still counts; else say nothing."""
        self._conversation.grant(self._channel, len(payload))
        if len(payload) == _TIME.size and self._conversation.credit(self._channel) > 0 and self._counts(self._member):
            self._conversation.send(self._channel, payload)
