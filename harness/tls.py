"""Certificates for tests: an authority, a broker's and a client's, as PEM files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

PEM = serialization.Encoding.PEM


def separate(pem: Path) -> tuple[Path, Path]:
    """Write the certificate and the key of a file that has both into files of their own."""
    certificate, mark, key = pem.read_text().partition("-----BEGIN PRIVATE KEY")
    paths = pem.with_suffix(".crt"), pem.with_suffix(".key")
    for path, text in zip(paths, (certificate, mark + key), strict=True):
        path.touch(mode=0o600)
        path.write_text(text)
    return paths


def make_certificates(
    directory: Path, *, host: str = "localhost", address: str = "127.0.0.1", others: tuple[str, ...] = ()
) -> None:
    """Write ca.pem, broker.pem and client.pem (certificate and key each) into a directory; they are for this host.

    Each of the `others` is the name of one more host, and of the file with its certificate.
    """
    directory.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)

    def issue(
        name: str, signer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None, other: str | None = None
    ) -> tuple[x509.Name, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer, signing = signer or (subject, key)
        names: list[x509.GeneralName] = [x509.DNSName(other)] if other else []
        if not other:
            names = [x509.DNSName(host), x509.IPAddress(IPv4Address(address))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        certificate = builder.sign(signing, hashes.SHA256())
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path = directory / f"{name}.pem"
        path.write_bytes(certificate.public_bytes(PEM) + (b"" if signer is None else private))
        path.chmod(0o600)
        return subject, key

    authority = issue("ca", None)
    issue("broker", authority)
    issue("client", authority)
    for other in others:
        issue(other, authority, other)
