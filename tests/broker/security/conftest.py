"""A SCRAM client written independently of the broker's code."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest

ClientFinal = Callable[..., tuple[str, str]]


def _client_final(password: str, first_bare: str, server_first: str, header: str = "n,,") -> tuple[str, str]:
    values = dict(part.split("=", 1) for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(values["s"]), int(values["i"]))
    client_key = hmac.new(salted, b"Client Key", hashlib.sha256).digest()
    stored = hashlib.sha256(client_key).digest()
    without = f"c={base64.b64encode(header.encode()).decode()},r={values['r']}"
    message = f"{first_bare},{server_first},{without}".encode()
    signature = hmac.new(stored, message, hashlib.sha256).digest()
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_key = hmac.new(salted, b"Server Key", hashlib.sha256).digest()
    server = base64.b64encode(hmac.new(server_key, message, hashlib.sha256).digest()).decode()
    return f"{without},p={base64.b64encode(proof).decode()}", f"v={server}"


@pytest.fixture
def client_final() -> ClientFinal:
    """The client's final message, and the server's signature it expects."""
    return _client_final
