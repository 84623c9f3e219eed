"""The two ends of a channel about MQTT between two nodes, on the connection by which messages go too.

Whoever opened the connection (it sends messages, and hears of queues) asks for sessions. The other end answers, tells
of retained messages, and asks whether what it told of its queues was heard: that goes by the same connection before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from pollux.cluster.link import Idle
from pollux.cluster.mqtt.words import Entry, Given, Heard, Reached, Retained, Sync, Take, Taken, Word, Words, encode
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pollux.cluster.link import Conversation
    from pollux.cluster.mqtt.words import Passed

logger = logging.getLogger("pollux.cluster")

#: The purpose of these channels (docs/core-protocol.md).
PURPOSE = "mqtt"
#: Bytes that may be sent before they are handled.
_WINDOW = 1 << 20
#: Bytes of retained messages told together.
_TOGETHER = 128 << 10


class Node(Protocol):
    """This node, as both ends see it."""

    def waiting(self, node: bytes) -> int:
        """Return how many messages wait for a node."""

    def merge(self, entries: tuple[Entry, ...], of: Asking) -> None:
        """Take what another node retains."""

    def entry(self, topic: str) -> Entry | None:
        """Return what is retained here."""

    def changed(self) -> None:
        """Look again who can be asked."""

    def joined(self, asking: Asking) -> None:
        """Ask a node that can be asked from now on for the clients that are here."""

    async def give(self, asked: Take, by: Answering) -> Given:
        """Let go of a client, here and beyond."""

    def given(self, client_id: str, to: Answering) -> None:
        """Give up a client's session, here and beyond."""

    async def synced(self, passed: Passed, by: Asking) -> int:
        """Return what :class:`Heard` says, when those beyond have said it."""

    def reached_beyond(self, told: Reached, by: Asking) -> None:
        """Ask for the clients that are here: there is somebody new to be asked by way of another node."""


class _End(Idle):
    """Hold what both ends do: send words as far as there is credit, and read them."""

    def __init__(self, conversation: Conversation, channel: int) -> None:
        self.channel = channel
        self.ended = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._conversation = conversation
        self._words = Words()
        self._out: deque[bytes] = deque()

    def _say(self, word: Word) -> None:
        self._out.extend(encode(word, self._conversation.room()))
        self.credited()

    def credited(self) -> None:
        """Send what waits."""
        while not self.ended and self._conversation.credit(self.channel) > 0:
            if not self._out and not self._more():
                return
            self._conversation.send(self.channel, self._out.popleft())

    def _more(self) -> bool:
        """Put more into what is sent, if there is something."""
        return False

    def data(self, payload: bytes) -> None:
        """Read what the other end says."""
        try:
            word = self._words.decode(payload)
            if word is not None:
                self._heard(word)
        except CoreError as error:
            self._conversation.stop(error.code, str(error))
            return
        self._conversation.grant(self.channel, len(payload))

    def _heard(self, word: Word) -> None:
        raise NotImplementedError

    def _begin(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def closed(self, code: str, text: str) -> None:
        """Note that the channel is gone."""
        del code, text
        self.ended = True


class Asking(_End):
    """The end of who opened the connection. ``heard``: life and number of the other one's changes heard last.

    ``connection``: the name of the cluster connection by which this is; ``hops``: how far that goes.
    """

    def __init__(
        self,
        node: Node,
        peer: bytes,
        conversation: Conversation,
        *,
        heard: tuple[bytes, int],
        connection: str,
        hops: int,
    ) -> None:
        self.peer, self.connection = peer, connection
        self.life, self.number = heard
        self.accepted_now = False
        self._node = node
        self._asked = 0
        self._answers: dict[int, asyncio.Future[Given | None]] = {}
        super().__init__(conversation, 0)
        self.channel = conversation.open(
            self, PURPOSE, life=self.life, number=self.number, connection=connection, hops=hops
        )

    def accepted(self, content: dict[str, Any]) -> None:
        """Begin: changes are counted within a life of the other node."""
        given = content.get("life")
        life = given if isinstance(given, bytes) else b""
        if life != self.life:
            self.life, self.number = life, 0
        self.accepted_now = True
        self._node.changed()
        self._node.joined(self)
        self._conversation.grant(self.channel, _WINDOW)
        self.credited()

    def take(
        self, client_id: str, user: str | None, passed: Passed, *, clean: bool, came: int = 0
    ) -> asyncio.Future[Given | None]:
        """Ask for a client; None: it cannot be asked any more. ``came``: when it came here, ms; 0: now."""
        self._asked += 1
        answer: asyncio.Future[Given | None] = asyncio.get_running_loop().create_future()
        if self.ended:
            answer.set_result(None)
        else:
            self._answers[self._asked] = answer
            self._say(Take(self._asked, client_id, user, clean, came, passed))
        return answer

    def taken(self, client_id: str) -> None:
        """Say that a session is here."""
        if not self.ended:
            self._say(Taken(client_id))

    def _heard(self, word: Word) -> None:
        if isinstance(word, Sync):
            self._sync(word)
        elif isinstance(word, Given):
            answer = self._answers.pop(word.number, None)
            if answer is not None and not answer.done():
                answer.set_result(word)
        elif isinstance(word, Retained):
            self._node.merge(word.entries, self)
            self.number = word.number or self.number
        elif isinstance(word, Reached):
            self._node.reached_beyond(word, self)
        else:
            raise CoreError("protocol", f"{type(word).__name__} from the side that answers")

    def _sync(self, word: Sync) -> None:
        if word.passed.hops <= 1:
            self._say(Heard(word.number, self._node.waiting(self.peer)))
        else:
            self._begin(self._sync_beyond(word))

    async def _sync_beyond(self, word: Sync) -> None:
        waiting = await self._node.synced(word.passed, self)
        if not self.ended:
            self._say(Heard(word.number, waiting))

    def closed(self, code: str, text: str) -> None:
        """Answer nothing any more."""
        super().closed(code, text)
        self._node.changed()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_result(None)


class Answering(_End):
    """The end of who took the connection, ``peer``.

    ``connection``: the name of the cluster connection by which it asks; ``hops``: how far that goes.
    """

    def __init__(
        self, node: Node, conversation: Conversation, channel: int, *, peer: bytes, connection: str, hops: int
    ) -> None:
        super().__init__(conversation, channel)
        self.peer, self.connection, self.hops = peer, connection, hops
        self._node = node
        self._number = 0
        self._reached = 0
        self._topics: dict[str, None] = {}
        self._unsaid = False
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[int]] = {}

    def begin(self, life: bytes, topics: dict[str, None], number: int) -> None:
        """Accept it. ``topics``: what has changed since the other end heard last; ``number``: where changes are now."""
        self._topics, self._reached, self._unsaid = topics, number, True
        self._conversation.accept(self.channel, life=life)
        self._conversation.grant(self.channel, _WINDOW)

    def changed(self, topic: str, number: int) -> None:
        """Tell of a topic; ``number``: where the changes are now."""
        self._topics[topic] = None
        self._reached, self._unsaid = number, True
        self.credited()

    def _more(self) -> bool:
        if not self._unsaid:
            return False
        entries, size = [], 0
        while self._topics and size < _TOGETHER:
            topic = next(iter(self._topics))
            del self._topics[topic]
            entry = self._node.entry(topic)
            if entry is not None:
                entries.append(entry)
                size += len(entry.data or b"") + len(topic) + 64
        self._unsaid = bool(self._topics)
        number = 0 if self._topics else self._reached
        self._out.extend(encode(Retained(number, tuple(entries)), self._conversation.room()))
        return True

    def sync(self, passed: Passed) -> asyncio.Future[int]:
        """Ask whether everything said so far was handled; how many messages wait for this node there; -1: unknown."""
        self._asked += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.ended:
            answer.set_result(-1)
        else:
            self._waiting[self._asked] = answer
            self._say(Sync(self._asked, passed))
        return answer

    def reached(self, told: Reached) -> None:
        """Say that a node can be asked by way of this one."""
        if not self.ended:
            self._say(told)

    def _heard(self, word: Word) -> None:
        if isinstance(word, Heard):
            answer = self._waiting.pop(word.number, None)
            if answer is not None and not answer.done():
                answer.set_result(word.waiting)
        elif isinstance(word, Take):
            self._begin(self._give(word))
        elif isinstance(word, Taken):
            self._node.given(word.client_id, self)
        else:
            raise CoreError("protocol", f"{type(word).__name__} from the side that asks")

    async def _give(self, asked: Take) -> None:
        try:
            given = await self._node.give(asked, self)
        except Exception:
            logger.exception("the session of MQTT client %r could not be given to another node", asked.client_id)
            given = Given(asked.number, None)
        if not self.ended:
            self._say(given)

    def closed(self, code: str, text: str) -> None:
        """Be asked nothing any more."""
        super().closed(code, text)
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_result(-1)
