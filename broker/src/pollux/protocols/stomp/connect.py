"""Read CONNECT and STOMP frames, and ask the connection router about the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pollux.protocols.redirects import Elsewhere, route, waits
from pollux.protocols.stomp.heartbeat import parse_heart_beat
from pollux.redacted import Redacted
from pollux.wire.stomp.headers import StompError, Version, parse_headers

if TYPE_CHECKING:
    from pollux.protocols.redirects import Client
    from pollux.protocols.services import Services

SUPPORTED = tuple(version.text for version in Version)
#: Characters of a client id; it becomes part of queue names.
MAX_CLIENT_ID = 1024


class RefusedError(StompError):
    """The client is not let in; ``headers`` of the ERROR frame say what it can do about it."""

    def __init__(self, text: str, headers: dict[str, str]) -> None:
        super().__init__(text)
        self.headers = headers


class VersionError(RefusedError):
    """No version in common; the ERROR frame lists ours (STOMP 1.2 "Protocol Negotiation")."""

    def __init__(self) -> None:
        super().__init__(f"supported protocol versions are {' '.join(SUPPORTED)}", {"version": ",".join(SUPPORTED)})


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
        raise VersionError
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


async def served_here(services: Services, client: Client) -> None:
    """Return when the client is served here. Raises RefusedError with where it is, in headers of our own, or why not.

    STOMP knows no redirection: a client that does not know ``redirect-host`` and ``redirect-port`` shows the words.
    """
    if (waiting := waits(services, client)) is not None:
        await waiting
    answer = route(services, client)
    if isinstance(answer, Elsewhere):
        headers = {"redirect-host": answer.host, "redirect-port": str(answer.port)}
        raise RefusedError(f"this client is served at {answer.reference}: connect there", headers)
    if answer is not None:
        raise RefusedError(answer.text, {})
