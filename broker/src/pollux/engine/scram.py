"""The server's side of SCRAM-SHA-256 (RFC 5802, RFC 7677): bytes in, bytes out.

It knows verifiers only, never a password, a socket or a clock. Unknown users get an exchange that
looks like any other and fails at its end, so that nobody learns which names exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING

from pollux.config.saslprep import saslprep
from pollux.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.verifiers import Verifier

#: Longest client message taken, bytes: names and nonces are short, what is longer is an attack.
MAXIMUM_MESSAGE = 4096
_NONCE_BYTES = 24
_PRINTABLE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")  # RFC 5802 section 7, printable: ASCII without ","


class ScramError(AuthenticationError):
    """The client broke the protocol; the text says how, and holds nothing secret."""


class ScramExchange:
    """One exchange: :meth:`first`, then :meth:`final`, which returns when the client proved itself.

    ``lookup`` gives the verifier for a SASLprepped name and whether that user exists; for an
    unknown name it must give the same invented verifier each time.
    """

    __slots__ = ("_first_bare", "_gs2", "_known", "_lookup", "_nonce", "_server_first", "_state", "_verifier", "user")

    def __init__(self, lookup: Callable[[str], tuple[Verifier, bool]], *, nonce: str | None = None) -> None:
        self._lookup = lookup
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode("ascii")
        self._state = "first"
        self._gs2 = ""
        self._first_bare = ""
        self._server_first = ""
        self._verifier: Verifier | None = None
        self._known = False
        #: The SASLprepped name the client claims; proven only after :meth:`final` returned.
        self.user = ""

    def first(self, message: bytes) -> bytes:
        """client-first-message in, server-first-message out (RFC 5802 section 5)."""
        self._enter("first")
        text = _decode(message)
        # gs2-header = gs2-cbind-flag "," [ authzid ] ","
        parts = text.split(",", 2)
        if len(parts) != 3:
            raise ScramError("SCRAM: the first message has no gs2-header")
        flag, authorization, bare = parts
        if flag.startswith("p="):
            raise ScramError("SCRAM: channel binding was not offered")
        if flag not in ("n", "y"):
            raise ScramError("SCRAM: unknown channel binding flag")
        attributes = bare.split(",")
        if attributes[0].startswith("m="):
            raise ScramError("SCRAM: the mandatory extension is not supported")
        if len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
            raise ScramError("SCRAM: the first message must name the user and a nonce")
        nonce = attributes[1][2:]
        if not _PRINTABLE.fullmatch(nonce):
            raise ScramError("SCRAM: the nonce is empty or not printable")
        self.user = _name(attributes[0][2:])
        if authorization:
            if not authorization.startswith("a="):
                raise ScramError("SCRAM: the gs2-header is not valid")
            if _name(authorization[2:]) != self.user:
                raise ScramError("SCRAM: acting for another user is not supported")
        self._gs2 = f"{flag},{authorization},"
        self._first_bare = bare
        self._nonce = nonce + self._nonce
        verifier, self._known = self._lookup(self.user)
        self._verifier = verifier
        salt = base64.b64encode(verifier.salt).decode("ascii")
        self._server_first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        self._state = "final"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """client-final-message in, server-final-message out; AuthenticationError when the proof is wrong."""
        self._enter("final")
        text = _decode(message)
        without_proof, separator, proof_text = text.rpartition(",p=")
        if not separator:
            raise ScramError("SCRAM: the final message has no proof")
        attributes = without_proof.split(",")
        binding = base64.b64encode(self._gs2.encode()).decode("ascii")
        if len(attributes) < 2 or attributes[0] != f"c={binding}":
            raise ScramError("SCRAM: the channel binding does not repeat the gs2-header")
        if not hmac.compare_digest(attributes[1].encode(), f"r={self._nonce}".encode()):
            raise ScramError("SCRAM: the nonce is not the one agreed")
        proof = _base64(proof_text)
        verifier = self._verifier
        assert verifier is not None  # noqa: S101 - first() set it, the state says so
        auth_message = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(verifier.stored_key, auth_message, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        proven = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
        if not (proven and self._known and len(proof) == len(signature)):
            raise AuthenticationError("the user name or the password is wrong")
        self._state = "done"
        server_signature = hmac.digest(verifier.server_key, auth_message, "sha256")
        return b"v=" + base64.b64encode(server_signature)

    def _enter(self, state: str) -> None:
        found, self._state = self._state, "failed"  # until the step succeeds
        if found != state:
            raise ScramError("SCRAM: message out of order")


def _decode(message: bytes) -> str:
    if len(message) > MAXIMUM_MESSAGE:
        raise ScramError(f"SCRAM: the message is longer than {MAXIMUM_MESSAGE} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramError("SCRAM: the message is not UTF-8") from None
    if "\0" in text:
        raise ScramError("SCRAM: the message holds a NUL")
    return text


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("SCRAM: the proof is not base64") from None


def _name(text: str) -> str:
    """saslname of RFC 5802 section 5.1: "=2C" is a comma, "=3D" an equals sign, any other "=" is an error."""
    if re.search(r"=(?!2C|3D)", text):
        raise ScramError("SCRAM: the user name is not escaped correctly")
    try:
        name = saslprep(text.replace("=2C", ",").replace("=3D", "="))
    except ValueError as error:
        raise ScramError(f"SCRAM: the user name is not allowed: {error}") from None
    if not name:
        raise ScramError("SCRAM: the user name is empty")
    return name
