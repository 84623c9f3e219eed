"""Masked passwords: ``ENC(...)`` in broker.xml, encrypted with a key that is only in a key file.

AES-256-GCM; the masked text is ``v1.`` and the URL-safe base64 of nonce (12 bytes), ciphertext and
tag. A key file holds 32 bytes in base64 on one line and belongs to the broker's user alone
(mode 0600 or less). There is no built-in key: who reads broker.xml without the key file learns nothing.

What encrypts is imported when a password is masked: most brokers have none, and each would start later.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from typing import TYPE_CHECKING

from pollux.errors import PolluxError

if TYPE_CHECKING:
    from pathlib import Path

KEY_BYTES = 32
_NONCE_BYTES = 12
_VERSION = "v1."
_ASSOCIATED = b"pollux masked password v1"
_MAX_KEY_FILE = 4096
_WRAPPED = re.compile(r"\s*ENC\((.*)\)\s*", re.DOTALL)


class MaskingError(PolluxError):
    """A password cannot be unmasked, or a key cannot be used."""


def generate_key() -> bytes:
    """Return a new random key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM.generate_key(bit_length=8 * KEY_BYTES)


def write_key(path: Path, key: bytes) -> None:
    """Write a key file with mode 0600; raise :class:`MaskingError` when it exists already.

    It is on stable storage, whole, when this returns: passwords are masked with it next.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(base64.b64encode(key) + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.link(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except FileExistsError:
        raise MaskingError(f"{path} exists already; a key in use must not be overwritten") from None
    except OSError as error:
        raise MaskingError(f"{path} cannot be created: {error.strerror}") from error


def read_key(path: Path) -> bytes:
    """Read a key file; raise :class:`MaskingError` when it is missing, readable by others, or not a key."""
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            data = stream.read(_MAX_KEY_FILE)
    except OSError as error:
        raise MaskingError(f"key file {path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise MaskingError(f"key file {path} has mode {mode:04o}; others must have no access: chmod 600 {path}")
    try:
        key = base64.b64decode(data.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise MaskingError(f"key file {path} does not hold a key: {KEY_BYTES} bytes in base64 are expected")
    return key


def is_masked(text: str) -> bool:
    """Tell whether ``text`` is written ``ENC(...)``."""
    return _WRAPPED.fullmatch(text) is not None


def mask(text: str, key: bytes) -> str:
    """Encrypt ``text`` and return it as ``ENC(...)``, ready for broker.xml. Each call gives another result."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(key).encrypt(nonce, text.encode(), _ASSOCIATED)
    return f"ENC({_VERSION}{base64.urlsafe_b64encode(nonce + sealed).decode()})"


def unmask(text: str, key: bytes) -> str:
    """Return what was given to :func:`mask`; ``ENC(`` and ``)`` may be missing. Raises :class:`MaskingError`."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    found = _WRAPPED.fullmatch(text)
    token = (found[1] if found else text).strip()
    if not token.startswith(_VERSION):
        raise MaskingError("the masked password was not made by 'pollux mask'; mask it again with this broker's key")
    try:
        sealed = base64.b64decode(token.removeprefix(_VERSION), altchars=b"-_", validate=True)
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _ASSOCIATED).decode()
    except (binascii.Error, InvalidTag, ValueError):
        raise MaskingError(
            "the masked password does not fit the key: it was changed, or made with another key"
        ) from None
