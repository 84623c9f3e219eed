"""One connection to another broker by AMQP 1.0: made again when it is gone, with a link for each queue that is meant.

Its parameters are those of ``<amqp-connection>``. Which queues are meant is looked at once a second.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pollux.client import frames
from pollux.client.amqp import AmqpStream
from pollux.client.answers import Answers
from pollux.client.calls import HandshakeError, reason_of
from pollux.client.errors import ClientError, ConnectionLostError, LoginError
from pollux.client.session import Session
from pollux.client.url import Endpoint as Address
from pollux.client.url import Options
from pollux.cluster.amqp.receiver import Receiver
from pollux.cluster.amqp.sender import Sender
from pollux.cluster.bridges.demand import COPIES
from pollux.cluster.connector import Contexts
from pollux.cluster.reconnection import Reconnection
from pollux.config.rules_amqp import matching
from pollux.config.tls import TlsError
from pollux.logs import event
from pollux.message import RoutingType
from pollux.wire.amqp.sasl import SASL_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config.acceptors import Endpoint
    from pollux.config.amqp_connections import AmqpConnection
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.bridge")

#: Seconds to connect, to log in and to begin.
_CONNECT = 30.0
#: The parts that a queue can have: it is sent from, or fetched into.
_PARTS: dict[str, type[Sender | Receiver]] = {"sender": Sender, "receiver": Receiver}
_Key = tuple[str, int]


class AmqpLinks(Reconnection):
    """Does what one ``<amqp-connection>`` says. All methods are called in the loop's thread."""

    logger = logger
    kind, down = "connection", "another broker is not reached"

    def __init__(self, configuration: Configuration, given: AmqpConnection, node: bytes, post: PostOffice) -> None:
        super().__init__(
            given.name,
            post.loop,
            given.endpoints,
            retry=given.retry_interval / 1000,
            attempts=given.reconnect_attempts,
        )
        self.given = given
        self._configuration = configuration
        self._post = post
        self._container = f"{configuration.name}.{node.hex()}.{given.name}"
        self._node = node
        self._contexts = Contexts()
        self._session: Session | None = None
        self._broker = ""
        self._links: dict[_Key, asyncio.Task[None]] = {}
        self._parts: dict[_Key, Sender | Receiver] = {}
        self._reasons: dict[_Key, str] = {}
        self._said: dict[str, str] = {}

    # -- the connection

    async def hold(self, endpoint: Endpoint) -> bool:
        """Log in there, and send and fetch until the connection is gone."""
        try:
            stream = await self._open(endpoint)
        except (OSError, TimeoutError, HandshakeError, ClientError, TlsError) as error:
            self.lost(f"{endpoint.host}:{endpoint.port}: {reason_of(error)}", _remedy(error))
            return False
        await self._use(stream)
        return True

    async def _open(self, endpoint: Endpoint) -> AmqpStream:
        """Connect and log in. Raises OSError, TimeoutError, HandshakeError, ClientError or TlsError."""
        given, settings = self.given, endpoint.settings
        context = self._contexts.context(settings)
        options = Options(
            user=given.user or None,
            password=given.password,
            ssl_enabled=context is not None,
            certificate_file=str(settings.key_store_path[0]) if settings.key_store_path else None,
            confirmation_window_size=-1,
        )
        stream = AmqpStream(Address(endpoint.host, endpoint.port), options, self._container)
        stream.server_name = settings.sni_host
        if settings.local_address or settings.local_port:
            stream.local_address = (settings.local_address or "0.0.0.0", settings.local_port)  # noqa: S104  (nothing is listened on)
        limit = settings.connect_timeout / 1000 if settings.connect_timeout > 0 else _CONNECT
        try:
            async with asyncio.timeout(limit):
                await stream.open_with(context, SASL_HEADER)
        except BaseException:
            stream.end("not usable")
            raise
        return stream

    async def _use(self, stream: AmqpStream) -> None:
        """Send and fetch until the connection is gone."""
        answers = Answers(stream.options)
        answers.ready.set()
        session = Session(answers, 0, transacted=False, over=lambda _session: stream.end("the session was ended"))
        stream.on_lost = lambda: session.fail(ConnectionLostError(stream.reason or "the connection is gone"))
        try:
            async with asyncio.timeout(_CONNECT):
                await session.establish(stream)
            self._session, self._broker = session, str(stream.endpoint)
            self.reached()
            self._said.clear()
            event(logger, logging.INFO, "connected to another broker", connection=self.given.name, to=self._broker)
            self._post.trail.tell("bridge-connected", bridge=self.given.name)
            self.look()
            await stream.lost.wait()
        except (TimeoutError, ClientError) as error:
            stream.end(reason_of(error))
        finally:
            was, self._session = self._session, None
            links = list(self._links.values())
            for task in links:
                task.cancel()
            await asyncio.gather(*links, return_exceptions=True)
            self._links.clear()
            self._parts.clear()
            if stream.reason is None:
                stream.flush()
                stream.write(frames.close())
            await stream.close()
            if was is not None:
                self._post.trail.tell("bridge-disconnected", bridge=self.given.name)
        self.lost(stream.reason or "the connection is gone")

    # -- its links

    def _meant(self) -> Iterator[tuple[str, Queue]]:
        """Return what is to be done now, and for which queues."""
        given, configuration = self.given, self._configuration
        for queue in list(self._post.space.queues):
            if queue.spec.internal or queue.temporary or queue.name.startswith(COPIES):
                continue
            sends = matching(configuration, given.senders, queue.name, queue.address) is not None
            fetches = matching(configuration, given.receivers, queue.name, queue.address) is not None
            if sends and fetches:
                self._say(queue.name, "it is sent from and fetched into: its messages would go round for ever")
            elif sends:
                yield "sender", queue
            elif fetches and queue.routing_type is RoutingType.MULTICAST:
                self._say(
                    queue.name,
                    "it is MULTICAST: what is sent there while the connection is gone would be lost; fetch into an"
                    " ANYCAST queue from a queue there, or federate the address",
                )
            elif fetches:
                yield "receiver", queue

    def look(self) -> None:
        """Start and end links where queues came and went; called once a second."""
        session = self._session
        if session is None:
            return
        meant = {(kind, queue.id): queue for kind, queue in self._meant()}
        for key in self._links.keys() - meant.keys():
            self._links.pop(key).cancel()
            self._reasons.pop(key, None)
        for key, queue in meant.items():
            if key not in self._links:
                self._links[key] = self._post.loop.create_task(self._keep(key, queue, session))

    async def _keep(self, key: _Key, queue: Queue, session: Session) -> None:
        """Have a link for a queue, again and again while the connection stands."""
        pause = self.given.retry_interval / 1000
        while not session.closed:
            name = f"{self.given.name}.{key[0]}.{queue.name}.{self._node.hex()}"
            part = self._parts[key] = _PARTS[key[0]](name, queue, self._post, session, pause)
            try:
                self._reasons[key] = ""
                reason = await part.run()
            except ClientError as error:
                reason = str(error)
            except Exception as error:
                logger.exception("the link of a queue to another broker failed")
                reason = repr(error)
            self._reasons[key] = reason
            if session.closed:
                return
            self._say(queue.name, reason)
            try:
                await session.remove(part.link)
            except ClientError:
                return
            await asyncio.sleep(pause)

    def _say(self, queue: str, reason: str) -> None:
        if self._said.get(queue) != reason:
            self._said[queue] = reason
            fields = {"connection": self.given.name, "queue": queue, "reason": reason}
            event(logger, logging.WARNING, "a queue has no link to another broker", **fields)

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "name": self.given.name,
            "connected": self.connected,
            "stopped": self.stopped,
            "reason": self.reason or None,
            "broker": self._broker or None,
            "links": [
                {
                    "kind": key[0],
                    "queue": part.queue.name,
                    "reason": self._reasons.get(key) or part.reason or None,
                    **part.describe(),
                }
                for key, part in self._parts.items()
            ],
        }


def _remedy(error: BaseException) -> str:
    """Return what somebody has to do about an attempt that failed; empty: the other broker may just not be there."""
    if isinstance(error, LoginError):
        return "correct user and password of the amqp-connection, or the user's there"
    return "correct keyStorePath or trustStorePath of its uri" if isinstance(error, TlsError) else ""
