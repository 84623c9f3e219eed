"""SUBSCRIBE and UNSUBSCRIBE of one MQTT connection (MQTT 5, sections 3.8 and 3.10), handled filter by filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.engine.security import Permission
from pollux.errors import PolluxError
from pollux.message import RoutingType
from pollux.protocols.mqtt.refusal import reason_of
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V5, SubAck, UnsubAck
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode, violation
from pollux.wire.mqtt.topics import split_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pollux.engine.security import Identity, Security
    from pollux.protocols.mqtt.delivery import Delivery
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.protocols.mqtt.state import ClientState
    from pollux.protocols.mqtt.subscription import Subscription
    from pollux.wire.mqtt.packets import Filter, Subscribe, Unsubscribe

    Answer = Callable[[SubAck | UnsubAck], bool]


class Subscribing:
    """Handles a client's subscriptions, one filter in a step. ``answer`` sends a packet; False: nobody is there."""

    __slots__ = ("_answer", "_delivery", "_limit", "_mqtt_sessions", "_security", "_state", "_texts", "identity")

    def __init__(
        self,
        mqtt_sessions: MqttSessions,
        security: Security,
        state: ClientState,
        delivery: Delivery,
        identity: Identity,
        *,
        answer: Answer,
        limit: int,
        problem_info: bool,
    ) -> None:
        """``limit`` is how many subscriptions the client may have; ``problem_info``: it wants reasons in words."""
        self._mqtt_sessions = mqtt_sessions
        self._security = security
        self._state = state
        self._delivery = delivery
        self.identity = identity
        self._answer = answer
        self._limit = limit
        #: Section 3.1.2.11.7.
        self._texts = problem_info and state.version == V5

    def subscribe(self, packet: Subscribe) -> Iterator[None]:
        """Subscribe (section 3.8). SUBACK leaves when that is durable; retained messages follow it."""
        state = self._state
        found = p.subscription_identifiers(packet.properties)
        identifier = found[0] if found else 0
        reasons: list[int] = []
        replay: list[Subscription] = []
        text = ""
        for entry in packet.filters:
            try:
                reasons.append(self._subscribe_one(entry, identifier, replay))
            except ProtocolError as error:
                if error.reason is not ReasonCode.TOPIC_FILTER_INVALID:
                    raise
                reasons.append(error.reason)
                text = error.text
            except PolluxError as error:
                reasons.append(reason_of(error))
                text = str(error)
            yield
        if state.durable:
            self._mqtt_sessions.save(state)
        properties: p.Properties = {p.PropertyId.REASON_STRING: text[:500]} if text and self._texts else {}
        answer = SubAck(packet.packet_id, reasons, properties)

        def known() -> None:
            if self._answer(answer):
                for subscription in replay:
                    self._mqtt_sessions.retained.replay(subscription)

        def stable(error: Exception | None) -> None:
            if error is None:
                self._mqtt_sessions.when_known(known)

        self._mqtt_sessions.post.when_stable(stable)

    def _subscribe_one(self, entry: Filter, identifier: int, replay: list[Subscription]) -> int:
        """Return the reason code of one filter; the subscription that wants retained messages goes to ``replay``."""
        state = self._state
        share, proper = split_shared(entry.topic_filter)
        if share is not None and entry.no_local:
            raise violation("No Local on a shared subscription")  # MQTT-3.8.3-4
        address = self._mqtt_sessions.mapping.address(proper)
        is_new = entry.topic_filter not in state.subscriptions
        if is_new and len(state.subscriptions) >= self._limit:
            return ReasonCode.QUOTA_EXCEEDED
        self._check(address, durable=share is not None or state.durable, is_new=is_new)
        subscription, is_new = self._mqtt_sessions.subscriptions.subscribe(
            state,
            entry.topic_filter,
            entry.qos,
            exclude_own=entry.no_local,
            retain_as_published=entry.retain_as_published,
            identifier=identifier,
        )
        self._delivery.open(subscription)
        if entry.retain_handling == 0 or (entry.retain_handling == 1 and is_new):
            replay.append(subscription)
        return entry.qos

    def _check(self, address: str, *, durable: bool, is_new: bool) -> None:
        """Raise NotPermittedError unless this user may subscribe here, and create what that needs."""
        security, identity = self._security, self.identity
        security.check(identity, Permission.consume, address)
        if not is_new:
            return
        kind = Permission.createDurableQueue if durable else Permission.createNonDurableQueue
        security.check(identity, kind, address)
        there = self._mqtt_sessions.post.address(address)
        if there is None or RoutingType.MULTICAST not in there.routing_types:
            security.check(identity, Permission.createAddress, address)

    def unsubscribe(self, packet: Unsubscribe) -> Iterator[None]:
        """Unsubscribe (section 3.10). UNSUBACK leaves when that is durable. Raises ProtocolError."""
        state = self._state
        reasons: list[int] = []
        for topic_filter in packet.filters:
            try:
                split_shared(topic_filter)
            except ProtocolError as error:
                if state.version != V5:
                    raise  # UNSUBACK says nothing of it there
                reasons.append(error.reason)
                yield
                continue
            gone = self._mqtt_sessions.subscriptions.unsubscribe(state, topic_filter)
            reasons.append(ReasonCode.SUCCESS if gone else ReasonCode.NO_SUBSCRIPTION_EXISTED)
            yield
        if state.durable:
            self._mqtt_sessions.save(state)
        answer = UnsubAck(packet.packet_id, reasons)

        def stable(error: Exception | None) -> None:
            if error is None:
                self._answer(answer)

        self._mqtt_sessions.post.when_stable(stable)
