"""SCRAM-SHA-256 verifiers (RFC 5803): what is kept of a password, and how it is written. Pure but for random salts."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from pollux.config.saslprep import saslprep

MECHANISM = "SCRAM-SHA-256"
#: 5 ms on the reference machine: a guess costs four times RFC 7677's minimum, and the reconnect
#: of a thousand different users after a failover still takes seconds only.
DEFAULT_ITERATIONS = 16_384
MINIMUM_ITERATIONS = 4_096
#: More would let the file itself stall log-ins (0.3 s each).
MAXIMUM_ITERATIONS = 1_000_000
SALT_BYTES = 16
_DECOY_PARTS = (b"salt", b"stored", b"server")
KEY_BYTES = hashlib.sha256().digest_size
_VERIFIER = re.compile(r"^SCRAM-SHA-256\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)$")


# The bundle uses this module without what the broker depends on.
@dataclass(frozen=True, slots=True)
class Verifier:
    """Hold what the broker keeps of a password (RFC 5802 section 3): enough to check it, not to use it."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def decoy(cls, key: bytes, name: bytes, iterations: int) -> Verifier:
        """Return one of a user that does not exist, which looks as real: the same each time, of no password."""
        salt, stored, server = (hmac.digest(key, part + b"\0" + name, "sha256") for part in _DECOY_PARTS)
        return cls(iterations, salt[:SALT_BYTES], stored, server)

    @classmethod
    def create(cls, password: str, *, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None) -> Verifier:
        """The verifier of a new ``password``. Raises ValueError for one that is empty or SASLprep refuses."""
        prepared = saslprep(password, stored=True)
        if not prepared:
            raise ValueError("an empty password is not allowed")
        if not MINIMUM_ITERATIONS <= iterations <= MAXIMUM_ITERATIONS:
            raise ValueError(f"iterations must be between {MINIMUM_ITERATIONS} and {MAXIMUM_ITERATIONS}")
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        client_key, server_key = _keys(salted_password(prepared, salt, iterations))
        return cls(iterations, salt, hashlib.sha256(client_key).digest(), server_key)

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """The verifier written as ``text``. Raises ValueError when it is none."""
        match = _VERIFIER.match(text)
        if match is None:
            raise ValueError("not a SCRAM-SHA-256 verifier")
        try:
            salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in match.groups()[1:])
        except binascii.Error as error:
            raise ValueError(f"the verifier's base64 is damaged: {error}") from error
        iterations = int(match[1])
        if not MINIMUM_ITERATIONS <= iterations <= MAXIMUM_ITERATIONS:
            raise ValueError(f"iterations are {iterations}, allowed are {MINIMUM_ITERATIONS} to {MAXIMUM_ITERATIONS}")
        if not salt or len(stored_key) != KEY_BYTES or len(server_key) != KEY_BYTES:
            raise ValueError("the verifier's keys have the wrong length")
        return cls(iterations, salt, stored_key, server_key)

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(part).decode("ascii") for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    def verify(self, password: str) -> bool:
        """Whether ``password`` (already SASLprepped) is the one. CPU heavy; drops the GIL: call it in a thread."""
        client_key, _ = _keys(salted_password(password, self.salt, self.iterations))
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self.stored_key)


def salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    """``Hi(password, salt, i)`` of RFC 5802 section 2.2, which is PBKDF2 with HMAC-SHA-256."""
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)


def _keys(salted: bytes) -> tuple[bytes, bytes]:
    """Client key and server key (RFC 5802 section 3)."""
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256")
