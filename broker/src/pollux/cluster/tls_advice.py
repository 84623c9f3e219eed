"""Why a TLS handshake between brokers failed, and what to do about it. Pure: errors in, words out.

For both ends: the connector's, which verifies the acceptor's certificate, and the acceptor's, which may ask for one.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pollux.config.acceptors import AcceptorSettings, ConnectorSettings

#: OpenSSL's X509_V_ERR numbers (x509_vfy.h).
_UNKNOWN_AUTHORITY = frozenset((2, 18, 19, 20, 21))
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_HOST = frozenset((62, 64))
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"))
_NOTHING_IN_COMMON = frozenset(
    (
        "NO_SHARED_CIPHER",
        "UNSUPPORTED_PROTOCOL",
        "NO_PROTOCOLS_AVAILABLE",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
    )
)
_VERSIONS = "compare enabledProtocols and enabledCipherSuites of the acceptor and of the connector"
SYSTEM_AUTHORITIES = "the system's authorities"


class Advice(NamedTuple):
    """``file`` of this broker that is concerned (empty: none), and what an operator can do."""

    reason: str
    file: str
    remedy: str


def connecting(settings: ConnectorSettings, error: Exception | None, *, shaken: bool) -> Advice:
    """Why a connector's connection failed before the other end had said anything.

    ``error`` None: it was closed. ``shaken``: our side of the handshake was done, or there was none.
    """
    key, trust = _first(settings.key_store_path), str(settings.trust_store_path or SYSTEM_AUTHORITIES)
    if not settings.ssl_enabled:
        return Advice(
            "it closed the connection without an answer",
            "",
            "see its log: where its acceptor takes TLS only, give this connector sslEnabled=true and a trustStorePath",
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verified("its certificate", error, trust, "the connector's trustStorePath", "its acceptor's")
    reason = _reason(error)
    if reason in _NO_TLS:
        return Advice("it does not speak TLS on this port", "", "give its acceptor sslEnabled=true and a keyStorePath")
    if reason in _NOTHING_IN_COMMON:
        return Advice(f"no version or cipher of TLS in common ({reason})", "", _VERSIONS)
    if shaken or "_ALERT_" in reason:
        return Advice(
            f"it did not accept this broker in the TLS handshake ({reason or 'it closed the connection'})",
            key,
            "see its log: where its acceptor has needClientAuth=true, give this connector a keyStorePath whose"
            " certificate that acceptor's trustStorePath accepts",
        )
    return Advice(
        f"it ended the connection in the TLS handshake{f' ({reason})' if reason else ''}",
        "",
        "see its log: its acceptor needs sslEnabled=true and a keyStorePath",
    )


def accepting(settings: AcceptorSettings, error: BaseException | None) -> Advice:
    """Why a handshake failed that a client or another broker began."""
    key, trust = _first(settings.key_store_path), str(settings.trust_store_path or "")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verified("the client's certificate", error, trust, "the acceptor's trustStorePath", "the client's")
    reason = _reason(error)
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return Advice(
            "the client shows no certificate",
            trust,
            "give it one that an authority in this file signed (a connector: keyStorePath), or take needClientAuth off",
        )
    if "UNKNOWN_CA" in reason:
        return Advice(
            "the client does not know the authority of our certificate",
            key,
            "put that authority into the client's trust store (a connector: trustStorePath)",
        )
    if "_ALERT_" in reason and "CERTIFICATE" in reason:
        return Advice(
            f"the client does not accept our certificate ({reason})",
            key,
            "see the client's log: it has expired, or is not for the host name that the client connects to",
        )
    if reason in _NOTHING_IN_COMMON:
        return Advice(f"no version or cipher of TLS in common ({reason})", "", _VERSIONS)
    return Advice(str(error) if error is not None and str(error) else "connection lost", "", "see the client's log")


def _verified(whose: str, error: ssl.SSLCertVerificationError, trust: str, store: str, other: str) -> Advice:
    code = error.verify_code
    renew = f"renew the certificate in {other} keyStorePath and reload that broker"
    if code in _UNKNOWN_AUTHORITY:
        return Advice(
            f"{whose} is signed by an authority that is not in the trust store ({error.verify_message})",
            trust,
            f"put the certificate of that authority into {store}, or use a certificate of an authority that is in it",
        )
    if code == _EXPIRED:
        return Advice(f"{whose} or its authority's has expired", trust, renew)
    if code == _NOT_YET_VALID:
        return Advice(f"{whose} is not valid yet", trust, f"compare the clocks of the two machines, or {renew}")
    if code in _OTHER_HOST:
        return Advice(
            f"{whose} is for another host: {error.verify_message}",
            trust,
            f"connect to the host that it names, or put one for this host into {other} keyStorePath",
        )
    return Advice(f"{whose} is not accepted: {error.verify_message}", trust, renew)


def _first(paths: tuple[object, ...]) -> str:
    return str(paths[0]) if paths else ""


def _reason(error: BaseException | None) -> str:
    return str(error.reason or "") if isinstance(error, ssl.SSLError) else ""
