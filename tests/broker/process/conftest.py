"""Certificates made on the spot, and an acceptor with sessions that only echo."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The broker runs on uvloop; connections also have to work on asyncio's own loop."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name in ("test_connection.py", "test_tls.py"):
        factories["asyncio"] = asyncio.new_event_loop
    return factories


_NOW = dt.datetime.now(dt.UTC)


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Twins"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, common),
        ]
    )


@dataclass
class Authority:
    """A certificate authority of this test run."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, directory: Path) -> Authority:
        """Make one; its certificate is in ``authority.pem``."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name("Authority"))
            .issuer_name(_name("Authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - dt.timedelta(days=1))
            .not_valid_after(_NOW + dt.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        (directory / "authority.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        return cls(directory, key, certificate)

    @property
    def path(self) -> Path:
        """The authority's certificate."""
        return self.directory / "authority.pem"

    def issue(
        self,
        common: str,
        *names: str,
        password: str | None = None,
        address: str = "127.0.0.1",
        left: dt.timedelta = dt.timedelta(days=2),
    ) -> Path:
        """A certificate for ``names`` with its key, as PEM; with ``password`` as PKCS12; valid for ``left``."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives.append(x509.IPAddress(ipaddress.ip_address(address)))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - dt.timedelta(days=1))
            .not_valid_after(_NOW + left)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        if password is not None:
            path = self.directory / f"{common}.p12"
            path.write_bytes(
                pkcs12.serialize_key_and_certificates(
                    b"server", key, certificate, [self.certificate], BestAvailableEncryption(password.encode())
                )
            )
            return path
        path = self.directory / f"{common}.pem"
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM)
        )
        path.chmod(0o600)
        return path

    def client_context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """A client that trusts this authority, and shows ``certificate`` when given."""
        context = ssl.create_default_context(cafile=str(self.path))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A fresh certificate authority."""
    return Authority.create(tmp_path)
