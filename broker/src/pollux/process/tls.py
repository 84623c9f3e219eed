"""Hold the TLS of one port while connections live: certificates read again, the name a client asked for, its subject.

How contexts are made, and which certificate a client gets, is :mod:`pollux.config.tls`; this module must not know
about key stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cryptography import x509

from pollux.config.tls import TlsError, server_tls

if TYPE_CHECKING:
    import ssl

    from pollux.config.tls import Certificate, ServerSettings

__all__ = ["ServerTls", "TlsError"]


class ServerTls:
    """Hold the context of one port. :meth:`load` again changes what new connections get."""

    def __init__(self, settings: ServerSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._asked: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        #: What a port that keeps its first context (the management port's listener) was given.
        self._first: ssl.SSLContext | None = None
        self.certificates: tuple[Certificate, ...] = ()
        self.context = self.load()

    def load(self) -> ssl.SSLContext:
        """Read the files and make the contexts. Raises TlsError and then leaves what was loaded before."""
        try:
            built = server_tls(self._settings, asked=self._remember)
        except TlsError as error:
            raise TlsError(f"{self._name}: {error}") from error
        if self._first is None:
            self._first = built.context
        else:
            # The old contexts' listeners go on with them: they hand each handshake to the new one.
            self._first.sni_callback = _Forward(built.context)
        self.certificates = built.certificates
        self.context = built.context
        return built.context

    def _remember(self, connection: ssl.SSLObject, name: str) -> None:
        self._asked[connection] = name.rstrip(".").lower()

    def asked_name(self, connection: Any) -> str | None:
        """Return the server name (SNI) that the client of an ``ssl_object`` asked for."""
        return self._asked.get(connection)

    @staticmethod
    def subject_of(connection: Any) -> str | None:
        """Return the verified client certificate's subject (RFC 4514) of an ``ssl_object``; None: it showed none."""
        certificate = connection.getpeercert(binary_form=True) if connection is not None else None
        return x509.load_der_x509_certificate(certificate).subject.rfc4514_string() if certificate else None


class _Forward:
    """Give the handshakes of a context that is no longer current to the one that is."""

    __slots__ = ("_context",)

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def __call__(self, connection: ssl.SSLObject, name: str, _context: ssl.SSLContext) -> int | None:
        # As in ssl's stubs; the name is None when the client gave none, and is passed on as it is.
        connection.context = self._context
        select = self._context.sni_callback
        return select(connection, name, self._context) if select is not None else None
