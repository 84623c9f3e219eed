"""Read Java's own key stores (JKS), so that they can be kept as PEM. Pure.

The format is that of ``sun.security.provider.JavaKeyStore``, big-endian: magic, version, number of entries; an entry is
its kind (1: private key with its chain, 2: trusted certificate), alias, date, and what it holds; at the end a SHA-1 of
password, a fixed text and everything before it. Private keys are sealed by a stream of SHA-1s over password and salt.
PEM is sealed with the same password. JCEKS, BKS and other kinds are not read.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_der_private_key,
)

from pollux.errors import PolluxError

MAGIC = b"\xfe\xed\xfe\xed"
_VERSION = 2
_PRIVATE_KEY, _TRUSTED = 1, 2
_SEAL = b"Mighty Aphrodite"
_DIGEST = 20
#: DER of the algorithm that Java seals the keys of JKS with (1.3.6.1.4.1.42.2.17.1.1).
_ALGORITHM = bytes.fromhex("060a2b060104012a02110101")
_MAXIMUM_ENTRIES = 10_000


class JavaStoreError(PolluxError):
    """A store is none, is damaged, or its password is another one."""


class PrivateKey(NamedTuple):
    """A private key (PKCS8, DER) and its certificates (DER), its own first."""

    alias: str
    key: bytes
    chain: tuple[bytes, ...]


class JavaStore(NamedTuple):
    """Hold what a store has, in its order; certificates are DER."""

    keys: tuple[PrivateKey, ...]
    trusted: tuple[bytes, ...]


class _Cursor:
    """Reads big-endian values, and no further than the data goes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if size < 0 or len(part) != size:
            raise JavaStoreError("the store is damaged: it ends too early")
        self._at += size
        return part

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def text(self) -> str:
        return self.take(self.number(">H")).decode("utf-8", "replace")

    def certificate(self) -> bytes:
        self.text()  # X.509
        return self.take(self.number(">I"))


def read_jks(data: bytes, password: str) -> JavaStore:
    """Take a store apart. Raises JavaStoreError."""
    if not data.startswith(MAGIC):
        raise JavaStoreError("this is no JKS store")
    secret = password.encode("utf-16-be")
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if not hmac.compare_digest(hashlib.sha1(secret + _SEAL + body, usedforsecurity=False).digest(), digest):
        raise JavaStoreError("the password of the store is another one, or the store is damaged")
    cursor = _Cursor(body)
    cursor.take(len(MAGIC))
    version, count = cursor.number(">I"), cursor.number(">I")
    if version != _VERSION or count > _MAXIMUM_ENTRIES:
        raise JavaStoreError(f"version {version} with {count} entries is not read")
    keys: list[PrivateKey] = []
    trusted: list[bytes] = []
    for _ in range(count):
        kind, alias, _date = cursor.number(">I"), cursor.text(), cursor.number(">Q")
        if kind == _PRIVATE_KEY:
            sealed = cursor.take(cursor.number(">I"))
            chain = tuple(cursor.certificate() for _ in range(cursor.number(">I")))
            keys.append(PrivateKey(alias, _unseal(sealed, secret), chain))
        elif kind == _TRUSTED:
            trusted.append(cursor.certificate())
        else:
            raise JavaStoreError(f"entry {alias[:60]!r} is of kind {kind}, which is not read")
    return JavaStore(tuple(keys), tuple(trusted))


def _unseal(sealed: bytes, secret: bytes) -> bytes:
    """Return the PKCS8 key in a Java-sealed EncryptedPrivateKeyInfo: SEQUENCE { algorithm, OCTET STRING }."""
    inside, _ = _der(sealed, 0x30)
    algorithm, rest = _der(inside, 0x30)
    if not algorithm.startswith(_ALGORITHM):
        raise JavaStoreError("a private key is sealed in another way than JKS does")
    data, _ = _der(rest, 0x04)
    salt, hidden, check = data[:_DIGEST], data[_DIGEST:-_DIGEST], data[-_DIGEST:]
    key = bytearray()
    block = salt
    for at in range(0, len(hidden), _DIGEST):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        key += bytes(one ^ other for one, other in zip(hidden[at : at + _DIGEST], block, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key, usedforsecurity=False).digest(), check):
        raise JavaStoreError("the password of a private key is another one than the store's")
    return bytes(key)


def _der(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the content of the DER value that ``data`` begins with, and what follows it."""
    cursor = _Cursor(data)
    if cursor.number("B") != tag:
        raise JavaStoreError("the store is damaged: a private key is not of the form it should have")
    size = cursor.number("B")
    head = 2
    if size & 0x80:
        head += size & 0x7F
        size = int.from_bytes(cursor.take(size & 0x7F), "big")
    return cursor.take(size), data[head + size :]


def to_pem(store: JavaStore, password: str) -> bytes:
    """Return keys (sealed with ``password``) with their chains, then trusted certificates, as PEM."""
    try:
        parts = []
        for entry in store.keys:
            key = load_der_private_key(entry.key, None)
            parts.append(
                key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
            )
            parts += [_certificate(each) for each in entry.chain]
        return b"".join([*parts, *map(_certificate, store.trusted)])
    except ValueError as error:
        raise JavaStoreError(f"a key or certificate of the store cannot be read: {error}") from error


def _certificate(der: bytes) -> bytes:
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
