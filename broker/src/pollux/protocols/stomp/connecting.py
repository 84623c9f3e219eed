"""Read CONNECT and STOMP frames. Pure."""

from __future__ import annotations

from typing import ClassVar

from pollux.protocols.stomp.heartbeat import parse_heart_beat
from pollux.redacted import Redacted
from pollux.wire.stomp.headers import StompError, Version, parse_headers

SUPPORTED = tuple(version.text for version in Version)
#: Characters of a client id; it becomes part of queue names.
MAX_CLIENT_ID = 1024


class VersionError(StompError):
    """No version in common; the ERROR frame lists ours (STOMP 1.2 "Protocol Negotiation")."""


class Greeting(Redacted, frozen=True):
    """A CONNECT frame. ``heart_beat`` is what the client can send and what it wants, in milliseconds."""

    hidden: ClassVar[frozenset[str]] = frozenset({"passcode"})

    version: Version
    login: str | None
    passcode: str | None
    client_id: str | None
    host: str | None
    heart_beat: tuple[int, int]


def read_connect(block: bytes) -> Greeting:
    """Return what a header block asks for; without ``accept-version`` it is STOMP 1.0.

    Raises StompError, VersionError among them.
    """
    headers = parse_headers(block, Version.V1_2, escaped=False)
    offered = {text.strip() for text in headers.get("accept-version", "1.0").split(",")}
    common = [version for version in Version if version.text in offered]
    if not common:
        raise VersionError(f"supported protocol versions are {' '.join(SUPPORTED)}")
    client_id = headers.get("client-id") or None
    if client_id is not None and (len(client_id) > MAX_CLIENT_ID or "::" in client_id):
        raise StompError(f"a client-id has at most {MAX_CLIENT_ID} characters and no '::'")
    login, passcode = headers.get("login") or None, headers.get("passcode") or None
    return Greeting(
        version=common[-1],
        login=login if login is not None or passcode is None else "",
        passcode=passcode,
        client_id=client_id,
        host=headers.get("host"),
        heart_beat=parse_heart_beat(headers.get("heart-beat")),
    )
