"""CONNECT to CONNACK (MQTT 5, section 3.1.4): who the client is, whether it may come in, and with which session.

Also AUTH (section 4.12): SCRAM-SHA-256 as enhanced authentication (RFC 5802 messages as authentication data), at
CONNECT and again later. Log-ins by password take a while and run as a task.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from pollux.engine.memory import MQTT_SESSION
from pollux.engine.security import Permission
from pollux.errors import (
    AuthenticationError,
    LimitError,
    NoSuchAddressError,
    NoSuchQueueError,
    NotPermittedError,
    PolluxError,
)
from pollux.protocols.mqtt.backpressure import LOG_IN
from pollux.protocols.mqtt.delivery import WINDOW_311, Delivery
from pollux.protocols.mqtt.inbound import Inbound
from pollux.protocols.mqtt.phases import EXCHANGE, Exchange
from pollux.protocols.mqtt.state import NEVER, ClientState, PendingWill
from pollux.protocols.redirects import Client, Elsewhere, route, waits
from pollux.routing.lifecycle import plan_producer
from pollux.transitions import follow
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V5, V31, Auth, ConnAck, Connect
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode, violation
from pollux.wire.mqtt.stored import encode_stored, scan_properties
from pollux.wire.mqtt.topics import check_topic_name

if TYPE_CHECKING:
    from pollux.engine.security import Identity, ScramServer
    from pollux.protocols.mqtt.neighbours import MovingSession
    from pollux.protocols.mqtt.session import MqttSession
    from pollux.wire.mqtt.packets import Will

logger = logging.getLogger("pollux.mqtt")

#: Characters of a client id; it becomes part of queue names.
MAX_CLIENT_ID = 1_024
#: Seconds a log-in may take; the server has a bound of its own for the whole handshake.
_LOG_IN_LIMIT = 60.0
_SCRAM = "SCRAM-SHA-256"


class Connecting:
    """The log-in of one connection, and its re-authentications."""

    __slots__ = ("_connect", "_exchange", "_identity", "_method", "_moved", "_scram", "_session", "_task", "_will")

    def __init__(self, session: MqttSession, connect: Connect) -> None:
        self._session = session
        self._connect = connect
        self._method = p.text(connect.properties, p.PropertyId.AUTHENTICATION_METHOD)
        self._exchange = Exchange.IDLE
        self._scram: ScramServer
        self._task: asyncio.Task[None] | None = None
        self._identity: Identity | None = None
        self._will: PendingWill | None = None
        #: What another node of a cluster had of this client.
        self._moved: MovingSession | None = None

    @property
    def enhanced(self) -> bool:
        """Whether the client chose an authentication method: then AUTH may come again."""
        return self._method is not None

    def start(self) -> None:
        """Look at CONNECT and begin the log-in. Raises ProtocolError."""
        connect, session = self._connect, self._session
        session.problem_info = p.integer(connect.properties, p.PropertyId.REQUEST_PROBLEM_INFORMATION, 1) == 1
        if len(connect.client_id) > MAX_CLIENT_ID or (
            not connect.client_id and (connect.version == V31 or (connect.version != V5 and not connect.clean_start))
        ):
            # 3.1.1, MQTT-3.1.3-8: without a client id there is no session to keep. 3.1 always has one.
            session.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "this client id is not allowed")
            return
        if connect.will is not None:
            self._will = self._check_will(connect.will)
        if self._method is not None:
            if self._method != _SCRAM:
                session.refuse(
                    ReasonCode.BAD_AUTHENTICATION_METHOD, f"authentication method {self._method[:40]!r} is not offered"
                )
                return
            self._scram_step(p.binary(connect.properties, p.PropertyId.AUTHENTICATION_DATA) or b"", again=False)
            return
        self._task = session.transport.loop.create_task(self._log_in())

    def cancel(self) -> None:
        """Stop the log-in: the connection is gone."""
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def _check_will(self, will: Will) -> PendingWill:
        """Return the will as it will be published (section 3.1.3.2)."""
        raw = will.topic.encode("utf-8")
        check_topic_name(raw)
        found = dict(will.properties)
        delay = found.pop(p.PropertyId.WILL_DELAY_INTERVAL, 0)
        expiry = found.pop(p.PropertyId.MESSAGE_EXPIRY_INTERVAL, None)
        scan_properties(p.encode_properties(found))
        return PendingWill(
            encode_stored(will.topic, will.payload, will.qos, will.retain, found),
            delay if isinstance(delay, int) else 0,
            expiry if isinstance(expiry, int) else None,
            None,
            self._session.transport.peer.connection_id,
        )

    # -- who

    async def _log_in(self) -> None:
        session, connect = self._session, self._connect
        security, peer = session.services.security, session.transport.peer
        try:
            if connect.username is not None or connect.password is not None:
                password = None if connect.password is None else connect.password.decode("utf-8")
                async with asyncio.timeout(_LOG_IN_LIMIT):
                    identity = await security.authenticate_password(connect.username, password, peer)
            elif peer.certificate_subject is not None:
                identity = security.authenticate_certificate(peer)
            else:
                identity = security.anonymous(peer)
        except (AuthenticationError, UnicodeDecodeError):
            session.refuse(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the log-in was refused")
            return
        except TimeoutError:
            session.refuse(ReasonCode.SERVER_BUSY, "the log-in took too long")
            return
        except Exception:
            logger.exception("log-in of MQTT client %r failed", connect.client_id)
            session.refuse(ReasonCode.UNSPECIFIED_ERROR, "internal error")
            return
        try:
            await self._accepted(identity)
        except Exception:
            logger.exception("MQTT client %r could not be let in", connect.client_id)
            session.refuse(ReasonCode.UNSPECIFIED_ERROR, "internal error")

    def auth(self, packet: Auth) -> None:
        """Handle AUTH: the next step, or (section 4.12.1) a new exchange. Raises ProtocolError."""
        if self._method is None:
            raise violation("AUTH without an authentication method")  # MQTT-4.12.0-6
        if p.text(packet.properties, p.PropertyId.AUTHENTICATION_METHOD) != self._method:
            raise violation("another authentication method than CONNECT's")  # MQTT-4.12.0-5
        data = p.binary(packet.properties, p.PropertyId.AUTHENTICATION_DATA) or b""
        again = self._identity is not None
        if packet.reason == ReasonCode.RE_AUTHENTICATE:
            if not again or self._exchange is not Exchange.IDLE:
                raise violation("a re-authentication at the wrong time")
        elif packet.reason != ReasonCode.CONTINUE_AUTHENTICATION or self._exchange is not Exchange.CHALLENGED:
            raise violation("AUTH at the wrong time")
        self._scram_step(data, again=again)

    def _scram_step(self, data: bytes, *, again: bool) -> None:
        """Take one message of the exchange, and send the answer (RFC 5802, section 5)."""
        session = self._session
        if self._exchange is Exchange.IDLE:
            try:
                self._scram = session.services.security.scram(_SCRAM, session.transport.peer)
                answer = self._scram.first(data)
            except AuthenticationError:
                self._scram_refused(again=again)
                return
            self._exchange = follow(EXCHANGE, self._exchange, Exchange.CHALLENGED)
            session.send_packet(Auth(ReasonCode.CONTINUE_AUTHENTICATION, self._auth_properties(answer)))
            if not again:
                session.reading.resume(LOG_IN)
            return
        self._exchange = follow(EXCHANGE, self._exchange, Exchange.CHECKING)
        # Its check may have to wait; nothing else is read meanwhile.
        session.reading.pause(LOG_IN)
        scram = self._scram
        del self._scram
        self._task = session.transport.loop.create_task(self._scram_final(scram, data, again=again))

    def _scram_refused(self, *, again: bool) -> None:
        if again:
            self._session.disconnect(ReasonCode.NOT_AUTHORIZED, "the re-authentication was refused")
        else:
            self._session.refuse(ReasonCode.NOT_AUTHORIZED, "the log-in was refused")

    async def _scram_final(self, scram: ScramServer, data: bytes, *, again: bool) -> None:
        try:
            async with asyncio.timeout(_LOG_IN_LIMIT):
                answer = await scram.final(data)
            await self._scram_succeeded(scram.identity, answer, again=again)
        except (AuthenticationError, TimeoutError):
            self._scram_refused(again=again)
        except Exception:
            logger.exception("SCRAM of MQTT client %r failed", self._connect.client_id)
            self._session.disconnect(ReasonCode.UNSPECIFIED_ERROR, "internal error")

    async def _scram_succeeded(self, identity: Identity | None, answer: bytes, *, again: bool) -> None:
        session = self._session
        self._exchange = follow(EXCHANGE, self._exchange, Exchange.IDLE)
        if identity is None:
            raise RuntimeError("a SCRAM exchange that succeeded without an identity")
        if not again:
            await self._accepted(identity, self._auth_properties(answer))
            return
        session.reading.resume(LOG_IN)
        if identity.user != session.user:
            session.disconnect(ReasonCode.NOT_AUTHORIZED, "a re-authentication as somebody else")
            return
        self._identity = identity
        session.authenticated_again(identity)
        session.send_packet(Auth(ReasonCode.SUCCESS, self._auth_properties(answer)))

    @staticmethod
    def _auth_properties(data: bytes) -> p.Properties:
        return {p.PropertyId.AUTHENTICATION_METHOD: _SCRAM, p.PropertyId.AUTHENTICATION_DATA: data}

    # -- in

    async def _accepted(self, identity: Identity, found: p.Properties | None = None) -> None:
        """Take up the session of a client that is who it says; CONNACK leaves when that is durable."""
        session, connect = self._session, self._connect
        services, mqtt_sessions = session.services, session.mqtt_sessions
        if not await self._served_here(identity):
            return
        try:
            services.security.connection_opened(identity, session.transport.peer)
        except LimitError as error:
            session.refuse(ReasonCode.QUOTA_EXCEEDED, str(error))
            return
        session.identity = self._identity = identity
        session.user = identity.user
        answer = ConnAck(properties=dict(found or {}))
        client_id = connect.client_id
        if not client_id:
            client_id = f"pollux-{secrets.token_hex(10)}"
            if connect.version == V5:
                answer.properties[p.PropertyId.ASSIGNED_CLIENT_IDENTIFIER] = client_id
        refusal = await self._from_neighbours(client_id, identity)
        while refusal is None:
            refusal = self._why_not(client_id, identity)
            if refusal is None:
                ending = mqtt_sessions.vacate(client_id, clean_start=connect.clean_start)
                if ending is None:
                    break
                # The end of thousands of subscriptions takes a while; no two sessions have one client id.
                await asyncio.shield(ending)
        if refusal is not None:
            session.refuse(*refusal)
            return
        session.client_id = client_id
        state, present = mqtt_sessions.connect(
            session, client_id, clean_start=connect.clean_start, version=connect.version, moved=self._moved
        )
        answer.session_present = present
        self._set_expiry(state, answer)
        if self._will is not None:
            self._will.user = identity.user
            state.will = self._will
        mqtt_sessions.account(state)
        receive_maximum, alias_maximum = self._limits(answer)
        inbound = Inbound(
            mqtt_sessions,
            state,
            session.transport,
            session.reading,
            send=session.send,
            violate=session.fail,
            security=services.security,
            identity=identity,
            receive_maximum=receive_maximum,
            alias_maximum=alias_maximum,
            problem_info=session.problem_info,
            close_unauthorized=session.settings.close_mqtt_connection_on_publish_authorization_failure,
            populate_user=services.configuration.populate_validated_user,
        )
        asked = connect.properties
        delivery = Delivery(
            mqtt_sessions,
            state,
            session.transport,
            session.outlet,
            receive_maximum=(
                p.integer(asked, p.PropertyId.RECEIVE_MAXIMUM, 65_535) if connect.version == V5 else WINDOW_311
            ),
            max_packet=p.integer(asked, p.PropertyId.MAXIMUM_PACKET_SIZE, 0),
            alias_maximum=p.integer(asked, p.PropertyId.TOPIC_ALIAS_MAXIMUM, 0),
        )
        session.state, session.inbound, session.delivery = state, inbound, delivery
        if not state.durable and not present:
            session.open(connect, answer, (state, inbound, delivery))
            return
        # Also of a session that was durable and is no longer: after a crash it ends at once.
        mqtt_sessions.save(state)

        def stable(error: Exception | None) -> None:
            if error is not None:
                return
            mqtt_sessions.taken(client_id)
            if state.connection is session:
                session.open(connect, answer, (state, inbound, delivery))

        mqtt_sessions.post.when_stable(stable)

    async def _served_here(self, identity: Identity) -> bool:
        """Whether this client is served here; else it was told where it is (section 4.13), and nothing was done for it.

        A client id that another connection uses here is not taken from it by one that does not stay.
        """
        session = self._session
        client = Client(session.protocol, session.transport.peer, identity, self._connect.client_id)
        if (waiting := waits(session.services, client)) is not None:
            await waiting
        answer = route(session.services, client)
        if isinstance(answer, Elsewhere):
            text = f"served at {answer.reference}"
            # To 3.1.1 it says "server unavailable", which has no place for an address.
            session.refuse(ReasonCode.USE_ANOTHER_SERVER, text, {p.PropertyId.SERVER_REFERENCE: answer.reference})
        elif answer is not None:
            session.refuse(
                ReasonCode.SERVER_UNAVAILABLE if answer.later else ReasonCode.USE_ANOTHER_SERVER, answer.text
            )
        return answer is None

    async def _from_neighbours(self, client_id: str, identity: Identity) -> tuple[ReasonCode, str] | None:
        """Take a client's place, and its session, at the other nodes of a cluster; return why it may not have that."""
        neighbours = self._session.mqtt_sessions.neighbours
        if neighbours is None or not self._connect.client_id:
            return None
        try:
            self._moved = await neighbours.take(client_id, identity.user, clean=self._connect.clean_start)
        except NotPermittedError as error:
            return ReasonCode.NOT_AUTHORIZED, str(error)
        return None

    def _why_not(self, client_id: str, identity: Identity) -> tuple[ReasonCode, str] | None:
        """Return why this client may not have this session, None when it may."""
        session = self._session
        mqtt_sessions, services = session.mqtt_sessions, session.services
        existing = mqtt_sessions.sessions.get(client_id)
        if existing is None:
            if len(mqtt_sessions.sessions) >= services.configuration.limits.max_mqtt_sessions:
                return ReasonCode.QUOTA_EXCEEDED, "the broker keeps as many sessions as it may"
        elif existing.user != identity.user:
            return ReasonCode.NOT_AUTHORIZED, "this client id belongs to another user"
        elif existing.connection is not None and not session.settings.allow_link_stealing:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "this client id is connected (allowLinkStealing is off)"
        will = 0 if self._will is None else len(self._will.data)
        if (existing is None or will) and not mqtt_sessions.post.memory.user(identity.user).has_room(
            MQTT_SESSION + len(client_id) + will
        ):
            return ReasonCode.QUOTA_EXCEEDED, "this user holds as much memory as it may (max-state-size)"
        if self._will is not None:
            raw = self._connect.will.topic if self._connect.will is not None else ""
            try:
                address = mqtt_sessions.mapping.address(raw)
                services.security.check(identity, Permission.send, address)
                # Whether it can be sent is seen when it is.
                with suppress(NoSuchAddressError, NoSuchQueueError):
                    mqtt_sessions.post.address_manager.require(
                        plan_producer(mqtt_sessions.post.space, address, None), identity.user
                    )
            except NotPermittedError as error:
                return ReasonCode.NOT_AUTHORIZED, str(error)
            except PolluxError as error:
                return ReasonCode.UNSPECIFIED_ERROR, str(error)
        return None

    def _set_expiry(self, state: ClientState, answer: ConnAck) -> None:
        """Set how long the session is kept (section 3.1.2.11.2), for a 3.1.1 client as long as the acceptor says."""
        connect, settings = self._connect, self._session.settings
        if connect.version == V5:
            asked = p.integer(connect.properties, p.PropertyId.SESSION_EXPIRY_INTERVAL, 0)
            state.expiry_interval = asked
            return
        default = settings.default_mqtt_session_expiry_interval
        state.expiry_interval = 0 if connect.clean_start else NEVER if default < 0 else default
        if connect.clean_start:
            answer.session_present = False

    def _limits(self, answer: ConnAck) -> tuple[int, int]:
        """Tell a MQTT 5 client what the broker allows (section 3.2.2.3); receive and topic alias maximum."""
        session, connect = self._session, self._connect
        settings = session.settings
        keep_alive = connect.keep_alive
        if connect.version != V5:
            session.keep_alive.silence = keep_alive * 1.5
            return 65_535, 0
        found = answer.properties
        longest = settings.server_keep_alive
        if longest > 0 and (keep_alive == 0 or keep_alive > longest):
            keep_alive = longest
            found[p.PropertyId.SERVER_KEEP_ALIVE] = longest
        session.keep_alive.silence = keep_alive * 1.5
        found[p.PropertyId.RECEIVE_MAXIMUM] = settings.receive_maximum
        if settings.topic_alias_maximum:
            found[p.PropertyId.TOPIC_ALIAS_MAXIMUM] = settings.topic_alias_maximum
        found[p.PropertyId.MAXIMUM_PACKET_SIZE] = session.max_packet
        if p.integer(connect.properties, p.PropertyId.REQUEST_RESPONSE_INFORMATION, 0):
            client_id = session.client_id or ""
            safe = "".join("_" if character in "+#/$\0" else character for character in client_id)
            found[p.PropertyId.RESPONSE_INFORMATION] = f"response/{safe}"
        return settings.receive_maximum, settings.topic_alias_maximum


__all__ = ["Connecting", "ProtocolError"]
