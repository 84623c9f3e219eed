"""Who is at the other end of a connection, as log-ins and the audit trail name it. Knows no socket."""

from __future__ import annotations

from msgspec import Struct


class Peer(Struct, frozen=True):
    """Who is at the other end. ``certificate_subject`` is the verified client certificate's DN (RFC 4514)."""

    connection_id: int
    address: str
    port: int
    tls: bool = False
    certificate_subject: str | None = None
    sni: str | None = None
    acceptor: str = ""
