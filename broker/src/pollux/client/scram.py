"""The client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677): the password never crosses the wire, and the broker has to
prove that it knows it too. Sans-io.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING

from pollux.client.calls import HandshakeError
from pollux.client.errors import LoginError
from pollux.config.saslprep import saslprep

if TYPE_CHECKING:
    from collections.abc import Callable

MECHANISM = "SCRAM-SHA-256"
#: Rounds that a broker may ask for: fewer would give the password away, more would stop this client.
MIN_ROUNDS, MAX_ROUNDS = 4096, 1_000_000


class Scram:
    """One log-in: :meth:`first`, :meth:`answer`, :meth:`verify`."""

    def __init__(self, user: str, password: str, nonce: Callable[[], str] = lambda: secrets.token_urlsafe(18)) -> None:
        """Raises LoginError for names and passwords that no broker can have."""
        try:
            name = saslprep(user).replace("=", "=3D").replace(",", "=2C")
            self._password = saslprep(password)
        except ValueError as error:
            raise LoginError(f"user name or password cannot be used: {error}") from None
        self._nonce = nonce()
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the client-first-message."""
        return b"n,," + self._bare.encode()

    def answer(self, challenge: bytes) -> bytes:
        """client-final-message for the server's first one. Raises HandshakeError."""
        text = challenge.decode("utf-8", "replace")
        values = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        try:
            nonce, salt, rounds = values["r"], base64.b64decode(values["s"], validate=True), int(values["i"])
        except (KeyError, ValueError):
            raise HandshakeError("the broker's SCRAM challenge is invalid") from None
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise HandshakeError("the broker's SCRAM challenge does not belong to this log-in")
        if not MIN_ROUNDS <= rounds <= MAX_ROUNDS:
            raise HandshakeError(f"the broker asks for {rounds} SCRAM rounds: allowed is {MIN_ROUNDS} to {MAX_ROUNDS}")
        salted = _salted(self._password, salt, rounds)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, final: bytes) -> bool:
        """Return whether server-final-message proves that the broker knows the password's verifier."""
        return bool(self._signature) and hmac.compare_digest(final, b"v=" + base64.b64encode(self._signature))


@lru_cache(maxsize=16)
def _salted(password: str, salt: bytes, rounds: int) -> bytes:
    """Return the salted password, an expensive step: done once for all connections to brokers with the same users."""
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
