"""Management requests over AMQP: messages to ``activemq.management``, answered at their reply-to address.

A request has the application properties ``_AMQ_ResourceName`` and ``_AMQ_Attribute``, or ``_AMQ_OperationName`` with
the parameters as a JSON array in its body. The answer has ``_AMQ_OperationSucceeded``, the request's correlation id
(or its message id), and as body a JSON array of the result, or of what was wrong. It comes when what was changed is
durable.
Asking takes the permission ``manage`` at the address, as the HTTP API does; so requests are no way to learn more.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from pollux.engine.management_requests import answer
from pollux.engine.security import MANAGEMENT_ADDRESS, Permission
from pollux.errors import InvalidRequestError, NotPermittedError, PolluxError
from pollux.logs import event
from pollux.message import Encoding, Message
from pollux.protocols.amqp.conditions import condition_of
from pollux.protocols.amqp.requests import RequestLink
from pollux.protocols.amqp.terminus import node_of
from pollux.wire.amqp.content import encode_content
from pollux.wire.amqp.sections import walk
from pollux.wire.content import Content
from pollux.wire.decoders import content_of

if TYPE_CHECKING:
    from pollux.protocols.amqp.connection import Connection
    from pollux.wire.amqp.proton import Pointer

logger = logging.getLogger("pollux.management")

#: Bytes of a request.
MAX_REQUEST = 64 << 10
_RESOURCE, _ATTRIBUTE, _OPERATION = "_AMQ_ResourceName", "_AMQ_Attribute", "_AMQ_OperationName"
_SUCCEEDED = "_AMQ_OperationSucceeded"


class ManagementLink(RequestLink):
    """A client's link to the management address."""

    __slots__ = ()

    most, what = MAX_REQUEST, "a management request"

    def on_message(self, delivery: Pointer, data: bytes, settled: bool) -> None:
        """Do what is asked; a request that cannot be answered is rejected."""
        try:
            walk(data)
            manage(self.session, Message(Encoding.AMQP, MANAGEMENT_ADDRESS, data))
        except PolluxError as error:
            if not settled:
                self.reject(delivery, condition_of(error), str(error))
        else:
            if not settled:
                self.accept([delivery])
        self.replenish()


def manage(session: Connection, request: Message) -> None:
    """Do what ``request`` asks for, and send the answer. Raises PolluxError when nobody could be told."""
    if len(request.data) > MAX_REQUEST:
        raise InvalidRequestError(f"a management request has {MAX_REQUEST} bytes at most")
    identity = session.proven()
    session.services.security.check(identity, Permission.manage, MANAGEMENT_ADDRESS)
    content = content_of(request)
    target = _reply_address(session, content.reply_to) if content.reply_to else None
    found = content.properties
    resource, attribute, operation = (_name(found.get(each)) for each in (_RESOURCE, _ATTRIBUTE, _OPERATION))
    event(
        logger,
        logging.INFO,
        "management request",
        connection=session.origin,
        user=identity.user,
        resource=resource[:200],
        attribute=attribute[:200],
        operation=operation[:200],
    )
    succeeded = True
    try:
        if bool(attribute) == bool(operation):
            raise InvalidRequestError(f"a request has {_ATTRIBUTE} or {_OPERATION}")
        parameters = [] if attribute else _parameters(content)
        result = answer(session.post, resource, attribute or operation, parameters, attribute=bool(attribute))
    except PolluxError as error:
        succeeded, result = False, str(error)
    if target is not None:
        _reply(session, target, content, succeeded, result)


def _reply(session: Connection, target: str, asked: Content, succeeded: bool, result: object) -> None:
    reply = Content(
        body=json.dumps([result]).encode(),
        text=True,
        properties={_SUCCEEDED: succeeded},
        correlation_id=asked.correlation_id if asked.correlation_id is not None else asked.message_id,
    )
    message = Message(Encoding.AMQP, target, b"", durable=False, timestamp=session.services.wall_ms())
    message.data = encode_content(message, reply)
    message.size += len(message.data)
    post, origin = session.post, session.origin

    def stable(error: Exception | None) -> None:
        if error is not None:
            return
        try:
            post.send(message)
        except PolluxError as problem:
            logger.warning("the answer to a management request of connection %d: %s", origin, problem)

    post.when_stable(stable)


def _reply_address(session: Connection, name: str) -> str:
    """Return where the answer goes: a temporary queue of this user, or where the user may send to anyhow."""
    node = node_of(name, (), session.settings)
    queue = session.post.space.queue(node.queue or node.address)
    user = session.proven().user
    if queue is None or not queue.temporary or queue.user != user:
        try:
            session.services.security.check(session.proven(), Permission.send, node.address, node.queue)
        except NotPermittedError as error:
            raise NotPermittedError(f"the answer would go to {name!r}: {error}") from error
    return node.address if node.queue is None else f"{node.address}::{node.queue}"


def relay_address(session: Connection, name: str) -> str:
    """Return where a message on an anonymous link goes. Raises NotPermittedError."""
    node = node_of(name, (), session.settings)
    if node.address == MANAGEMENT_ADDRESS:
        session.services.security.check(session.proven(), Permission.manage, MANAGEMENT_ADDRESS)
        return MANAGEMENT_ADDRESS
    session.services.security.check(session.proven(), Permission.send, node.address, node.queue)
    return node.address if node.queue is None else f"{node.address}::{node.queue}"


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


def _parameters(content: Content) -> list[Any]:
    if not content.body:
        return []
    try:
        found = json.loads(content.body)
    except (ValueError, RecursionError):
        raise InvalidRequestError("the parameters of an operation are a JSON array in the body") from None
    if not isinstance(found, list):
        raise InvalidRequestError("the parameters of an operation are a JSON array in the body")
    return found
