"""TLS contexts from configuration: certificates chosen by SNI, PEM and PKCS12 stores, TLS 1.2 at least.

Reads key and trust stores (so it does I/O, at start and on reload, never for each connection).
Keys out of PKCS12 stores are handed to OpenSSL through anonymous memory, never through a file on disk.
"""

from __future__ import annotations

import os
import re
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
from cryptography.x509.oid import ExtensionOID, NameOID
from msgspec import Struct

from pollux.errors import PolluxError
from pollux.redacted import Redacted

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pollux.config.acceptors import ConnectorSettings

_STORE_SUFFIXES = (".pem", ".p12", ".pfx")
_MAX_STORE = 4 * 1024 * 1024
_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_IANA = re.compile(r"TLS_(?:(?P<exchange>[A-Z]+(?:_[A-Z]+)?)_WITH_)?(?P<cipher>[A-Z0-9_]+)")


class TlsError(PolluxError):
    """A TLS setting cannot be used; the text names the file and what is wrong."""


class ServerSettings(Protocol):
    """Name the settings that acceptors and the management port have in common."""

    @property
    def ssl_enabled(self) -> bool: ...
    @property
    def key_store_path(self) -> tuple[Path, ...]: ...
    @property
    def key_store_password(self) -> str | None: ...
    @property
    def trust_store_path(self) -> Path | None: ...
    @property
    def trust_store_password(self) -> str | None: ...
    @property
    def need_client_auth(self) -> bool: ...
    @property
    def enabled_protocols(self) -> tuple[str, ...]: ...
    @property
    def enabled_cipher_suites(self) -> tuple[str, ...]: ...


class Certificate(Struct, frozen=True):
    """Hold what management shows of a certificate in use."""

    path: Path
    subject: str
    names: tuple[str, ...]
    not_after: dt.datetime


class ServerTls(Struct, frozen=True):
    """The context to listen with; it switches to another certificate when the client asks for its name."""

    context: ssl.SSLContext
    certificates: tuple[Certificate, ...]


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_STORE + 1)
    except OSError as error:
        raise TlsError(f"{what} {path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_STORE:
        raise TlsError(f"{what} {path} is larger than {_MAX_STORE // (1024 * 1024)} MiB")
    if data.startswith(_JKS):
        raise TlsError(
            f"{what} {path} is a Java key store; convert it: pollux migrate, or keytool -importkeystore -srckeystore"
            f" {path.name} -destkeystore store.p12 -deststoretype pkcs12"
        )
    return data


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _pkcs12(path: Path, data: bytes, password: str | None, what: str) -> pkcs12.PKCS12KeyAndCertificates:
    try:
        return pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError as error:
        raise TlsError(f"{what} {path} is neither PEM nor a PKCS12 store this password opens") from error


class _KeyStore(Redacted, frozen=True):
    """A key store as PEM text, with its first certificate."""

    hidden: ClassVar[frozenset[str]] = frozenset({"pem", "password"})

    path: Path
    pem: bytes
    password: str | None
    leaf: x509.Certificate


def _key_store(path: Path, password: str | None) -> _KeyStore:
    data = _read(path, "key store")
    if _is_pem(data):
        try:
            leaf = x509.load_pem_x509_certificates(data)[0]
        except (ValueError, IndexError) as error:
            raise TlsError(f"key store {path} has no readable certificate") from error
        if b"PRIVATE KEY-----" not in data:
            raise TlsError(f"key store {path} has a certificate but no private key: put both into one PEM file")
        return _KeyStore(path, data, password, leaf)
    store = _pkcs12(path, data, password, "key store")
    if store.key is None or store.cert is None:
        raise TlsError(f"key store {path} needs a private key with its certificate")
    chain = [store.cert.certificate, *(extra.certificate for extra in store.additional_certs)]
    pem = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _KeyStore(
        path, pem + b"".join(item.public_bytes(Encoding.PEM) for item in chain), None, store.cert.certificate
    )


@contextmanager
def _anonymous(data: bytes) -> Iterator[str]:
    """Give the name of a file that is in memory only, for what OpenSSL takes from files alone."""
    descriptor = os.memfd_create("pollux-key-store", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _load_chain(context: ssl.SSLContext, store: _KeyStore) -> None:
    """Give OpenSSL the key and chain through a descriptor of anonymous memory."""
    try:
        with _anonymous(store.pem) as file:
            # A callable, so that an encrypted key without a password is an error and not a prompt on the terminal.
            context.load_cert_chain(file, password=lambda: store.password or "")
    except ssl.SSLError as error:
        raise TlsError(
            f"key store {store.path} cannot be used: the key does not fit the certificate, or the password is wrong"
            f" ({error.reason or error})"
        ) from error
    except ValueError as error:
        raise TlsError(f"the password of key store {store.path} cannot be used: {error}") from error


def _trust(context: ssl.SSLContext, path: Path, password: str | None) -> None:
    data = _read(path, "trust store")
    try:
        if _is_pem(data):
            context.load_verify_locations(cadata=data.decode("ascii", "ignore"))
            return
        store = _pkcs12(path, data, password, "trust store")
        certificates = [item.certificate for item in store.additional_certs]
        if store.cert is not None:
            certificates.append(store.cert.certificate)
        if not certificates:
            raise TlsError(f"trust store {path} has no certificate")
        pem = b"".join(item.public_bytes(Encoding.PEM) for item in certificates)
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except ssl.SSLError as error:
        raise TlsError(f"trust store {path} has no usable certificate ({error.reason or error})") from error


def _revocation(context: ssl.SSLContext, path: Path) -> None:
    """Have every certificate of a chain be looked up in the lists of a file."""
    data = _read(path, "revocation list")
    try:
        if b"-----BEGIN X509 CRL-----" not in data:
            data = x509.load_der_x509_crl(data).public_bytes(Encoding.PEM)
        with _anonymous(data) as file:
            context.load_verify_locations(cafile=file)
    except (ValueError, ssl.SSLError) as error:
        raise TlsError(f"revocation list {path} cannot be read: give a CRL as PEM or DER") from error
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN


def openssl_cipher(name: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 cipher suite given by that or by its IANA name."""
    found = _IANA.fullmatch(name)
    if found is None:
        return name
    if found["exchange"] is None:
        raise TlsError(f"{name} is a TLS 1.3 suite: those are all enabled always; list only suites of TLS 1.2")
    cipher = found["cipher"].replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    if cipher.startswith("CHACHA20_POLY1305"):
        cipher = "CHACHA20_POLY1305"
    exchange = "" if found["exchange"] == "RSA" else found["exchange"] + "-"
    return (exchange + cipher).replace("_", "-")


def _configure(context: ssl.SSLContext, protocols: tuple[str, ...], suites: tuple[str, ...]) -> None:
    unknown = [name for name in protocols if name not in _VERSIONS]
    if unknown:
        raise TlsError(f"enabledProtocols {', '.join(unknown)} is not supported: use {', '.join(_VERSIONS)}")
    versions = sorted(_VERSIONS[name] for name in protocols) or list(_VERSIONS.values())
    context.minimum_version = versions[0]
    context.maximum_version = versions[-1]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if suites:
        try:
            context.set_ciphers(":".join(openssl_cipher(name) for name in suites))
        except ssl.SSLError as error:
            raise TlsError(f"none of the cipher suites {', '.join(suites)} is known to OpenSSL") from error


def certificate_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names a certificate is for, in lower case (the common name when it has no others)."""
    try:
        extension = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        extension = None
    names: list[str] = []
    if isinstance(extension, x509.SubjectAlternativeName):
        names = extension.get_values_for_type(x509.DNSName)
    if not names:
        names = [str(item.value) for item in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return tuple(dict.fromkeys(name.lower() for name in names))


def choose(contexts: Mapping[str, ssl.SSLContext], name: str) -> ssl.SSLContext | None:
    """Return the context for a server name: exact first, then a wildcard for its first label. Pure."""
    name = name.lower().rstrip(".")
    if name in contexts:
        return contexts[name]
    _, _, parent = name.partition(".")
    return contexts.get(f"*.{parent}") if parent else None


def _server_context(settings: ServerSettings, store: _KeyStore) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, settings.enabled_protocols, settings.enabled_cipher_suites)
    _load_chain(context, store)
    want = bool(getattr(settings, "want_client_auth", False))
    if settings.need_client_auth or want:
        if settings.trust_store_path is None:
            raise TlsError("client certificates are asked for, but no trust store says whose are accepted")
        context.verify_mode = ssl.CERT_REQUIRED if settings.need_client_auth else ssl.CERT_OPTIONAL
        _trust(context, settings.trust_store_path, settings.trust_store_password)
        lists = getattr(settings, "crl_path", None)
        if lists is not None:
            _revocation(context, lists)
    return context


def _store_files(paths: tuple[Path, ...]) -> list[Path]:
    """Return the key stores; a directory stands for every PEM and PKCS12 file in it, by name."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in _STORE_SUFFIXES)
            if not found:
                raise TlsError(
                    f"key store directory {path} has no file {', '.join(f'*{end}' for end in _STORE_SUFFIXES)}"
                )
            files += found
        else:
            files.append(path)
    return files


def server_tls(settings: ServerSettings, *, asked: Callable[[ssl.SSLObject, str], None] | None = None) -> ServerTls:
    """Build the context of an acceptor or of the management port; raises :class:`TlsError`.

    With several key stores the client gets the certificate for the name it asks for, and the first one when it asks
    for none or for an unknown one. A ``sni_host`` pattern refuses clients that ask for a name it does not match.
    ``asked`` is told the name each client asks for. Call again to read renewed certificates.
    """
    if not settings.key_store_path:
        raise TlsError("TLS needs a key store")
    pattern_text = getattr(settings, "sni_host", None)
    try:
        pattern = re.compile(pattern_text, re.IGNORECASE) if pattern_text else None
    except re.error as error:
        raise TlsError(f"sniHost {pattern_text!r} is not a regular expression: {error}") from error
    stores = [_key_store(path, settings.key_store_password) for path in _store_files(settings.key_store_path)]
    built = [_server_context(settings, store) for store in stores]
    contexts: dict[str, ssl.SSLContext] = {}
    for store, context in zip(stores, built, strict=True):
        for name in certificate_names(store.leaf):
            contexts.setdefault(name, context)
    default = built[0]

    def select(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
        if name is None:
            return None
        if asked is not None:
            asked(connection, name)
        if pattern is not None and not pattern.fullmatch(name):
            return ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        chosen = choose(contexts, name)
        if chosen is not None and chosen is not default:
            connection.context = chosen
        return None

    if pattern is not None or asked is not None or len(built) > 1:
        default.sni_callback = select
    return ServerTls(
        default,
        tuple(
            Certificate(
                store.path,
                store.leaf.subject.rfc4514_string(),
                certificate_names(store.leaf),
                store.leaf.not_valid_after_utc,
            )
            for store in stores
        ),
    )


def client_context(settings: ConnectorSettings) -> ssl.SSLContext:
    """Build the context of a connector; raises :class:`TlsError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _configure(context, settings.enabled_protocols, settings.enabled_cipher_suites)
    context.check_hostname = settings.verify_host and not settings.trust_all
    if settings.trust_all:
        context.verify_mode = ssl.CERT_NONE
    elif settings.trust_store_path is not None:
        _trust(context, settings.trust_store_path, settings.trust_store_password)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if settings.crl_path is not None:
        _revocation(context, settings.crl_path)
    if settings.key_store_path:
        _load_chain(context, _key_store(settings.key_store_path[0], settings.key_store_password))
    return context
