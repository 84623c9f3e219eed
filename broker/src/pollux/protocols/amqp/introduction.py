"""How the broker opens a connection: its capabilities and properties, and the other brokers it names. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.protocols.redirects import Elsewhere, Refused, route
from pollux.version import VERSION
from pollux.wire.amqp.codec import Symbol, UShort

if TYPE_CHECKING:
    from pollux.engine.peer import Peer
    from pollux.protocols.redirects import Client
    from pollux.protocols.services import Services

#: The capability by which a client asks to be the only connection of its container id.
SOLE = "sole-connection-for-container"
#: Bytes of a server in a list of them, without its host, which is there twice.
_SERVER = 72
OFFERED = (SOLE, "DELAYED_DELIVERY", "SHARED-SUBS", "ANONYMOUS-RELAY")


def open_properties(failover: dict[object, object], *, refused: bool) -> dict[object, object]:
    """Return the properties of our open; ``refused``: a close with an error follows at once."""
    properties: dict[object, object] = {
        Symbol("product"): "pollux",
        Symbol("version"): VERSION,
        Symbol("platform"): "Python",
        **failover,
    }
    if refused:
        properties[Symbol("amqp:connection-establishment-failed")] = True
    return properties


def refusal(container: str) -> tuple[str, str, dict[object, object]]:
    """Return condition, description and information of the close that refuses a container's second connection."""
    return (
        "amqp:invalid-field",
        f"container {container!r} has a connection already",
        {Symbol("invalid-field"): Symbol("container-id")},
    )


def decide(services: Services, client: Client) -> tuple[str, str, dict[object, object]] | None:
    """Return condition, description and information of the close that sends a client to another broker, or away.

    None: it is served here.
    """
    answer = route(services, client)
    if answer is None:
        return None
    if isinstance(answer, Refused):
        return "amqp:connection:forced", answer.text, {}
    return redirection(answer)


def redirection(answer: Elsewhere) -> tuple[str, str, dict[object, object]]:
    """Return condition, description and information of the close that sends a client to another broker.

    The information is that of a redirected connection (2.8.14 of the specification's part 2). A client with TLS is told
    of no scheme where the other broker's TLS is not known: it keeps its own.
    """
    info: dict[object, object] = {
        Symbol("network-host"): answer.host,
        Symbol("hostname"): answer.host,
        Symbol("port"): UShort(answer.port),
    }
    if answer.tls:
        info[Symbol("scheme")] = "amqps"
    return "amqp:connection:redirect", f"served at {answer.reference}", info


def failover_info(services: Services, peer: Peer, frame: int) -> dict[object, object]:
    """Return the other brokers for a client, as AMQP JMS clients expect them: like a redirected connection.

    As many, in their order, as have room in half of a frame of so many bytes, the largest that the client takes.
    """
    servers: list[dict[Symbol, object]] = []
    room = frame // 2
    for host, port, scheme in services.failover_servers("AMQP", peer.tls):
        room -= _SERVER + 2 * len(host)
        if room < 0:
            break
        servers.append(
            {
                Symbol("network-host"): host,
                Symbol("hostname"): host,
                Symbol("port"): UShort(port),
                Symbol("scheme"): scheme,
            }
        )
    return {Symbol("failover-server-list"): servers} if servers else {}
