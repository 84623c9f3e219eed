"""TLS contexts, by handshakes in memory between both ends."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from pollux.config.acceptors import AcceptorSettings, ConnectorSettings
from pollux.config.extensions import Management
from pollux.config.tls import ServerTls, TlsError, client_context, openssl_cipher, server_tls

STORE_PASSWORD = "changeit"
NOW = dt.datetime.now(dt.UTC)


class Authority:
    """A certificate authority of the test's own."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key.public_key(), [], ca=True)
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, names: list[x509.GeneralName], *, ca: bool = False
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - dt.timedelta(days=1))
            .not_valid_after(NOW + dt.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, *names: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        general: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        general.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        return key, self._sign(subject, key.public_key(), general)

    def pem(self, *names: str, password: str | None = None) -> Path:
        key, certificate = self.issue(*names)
        encryption: KeySerializationEncryption = (
            BestAvailableEncryption(password.encode()) if password else NoEncryption()
        )
        path = self.directory / f"{names[0].replace('*', 'any')}.pem"
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption) + certificate.public_bytes(Encoding.PEM)
        )
        return path

    def p12(self, *names: str) -> Path:
        key, certificate = self.issue(*names)
        path = self.directory / f"{names[0]}.p12"
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                names[0].encode(),
                key,
                certificate,
                [self.certificate],
                BestAvailableEncryption(STORE_PASSWORD.encode()),
            )
        )
        return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "authority")


def handshake(server: ServerTls, client: ssl.SSLContext, name: str | None) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Let both ends talk until the handshake is complete; raises what either of them raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.context.wrap_bio(to_server, to_client, server_side=True)
    pending = [one, other]
    for _ in range(20):
        for end in list(pending):
            try:
                end.do_handshake()
                pending.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not pending:
            break
    else:
        raise AssertionError("the handshake does not end")
    other.write(b"x")
    assert one.read(1) == b"x"
    return one, other


def trusting(authority: Authority, **changes: object) -> ssl.SSLContext:
    return client_context(replace(ConnectorSettings(ssl_enabled=True, trust_store_path=authority.path), **changes))


def common_name(end: ssl.SSLObject) -> str:
    certificate = end.getpeercert()
    assert certificate is not None
    subject = certificate["subject"]
    assert isinstance(subject, tuple)
    return dict(pair for group in subject for pair in group)["commonName"]  # type: ignore[misc]  # typeshed: nested unions


def acceptor(*stores: Path, **changes: object) -> AcceptorSettings:
    return replace(AcceptorSettings(ssl_enabled=True, key_store_path=stores), **changes)


def test_pem(authority: Authority) -> None:
    built = server_tls(acceptor(authority.pem("one.example")))
    client, server = handshake(built, trusting(authority), "one.example")
    assert client.version() == "TLSv1.3"
    assert common_name(client) == "one.example"
    assert server.getpeercert() is None
    (certificate,) = built.certificates
    assert certificate.names == ("one.example",)
    assert certificate.subject == "CN=one.example"
    assert NOW < certificate.not_after < NOW + dt.timedelta(days=31)


def test_encrypted_pem(authority: Authority) -> None:
    store = authority.pem("enc.example", password="secret")
    handshake(server_tls(acceptor(store, key_store_password="secret")), trusting(authority), "enc.example")
    for password in (None, "", "wrong"):
        with pytest.raises(TlsError, match=f"^key store {store} cannot be used: the key does not fit"):
            server_tls(acceptor(store, key_store_password=password))
    with pytest.raises(TlsError, match=r"password of key store .* cannot be used"):
        server_tls(acceptor(store, key_store_password="x" * 5000))


def test_pkcs12(authority: Authority) -> None:
    store = authority.p12("two.example")
    built = server_tls(acceptor(store, key_store_password=STORE_PASSWORD))
    client, _ = handshake(built, trusting(authority), "two.example")
    assert common_name(client) == "two.example"
    with pytest.raises(TlsError, match=f"^key store {store} is neither PEM nor a PKCS12 store this password opens$"):
        server_tls(acceptor(store, key_store_password="wrong"))


def test_the_key_of_a_pkcs12_store_is_not_left_behind(authority: Authority, tmp_path: Path) -> None:
    before = {descriptor.name for descriptor in Path("/proc/self/fd").iterdir()}
    server_tls(acceptor(authority.p12("two.example"), key_store_password=STORE_PASSWORD))
    assert len({descriptor.name for descriptor in Path("/proc/self/fd").iterdir()} - before) <= 1


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("one.example", "one.example"),
        ("ONE.example", "one.example"),
        ("alias.example", "one.example"),
        ("two.example", "two.example"),
        ("a.wild.example", "*.wild.example"),
    ],
)
def test_the_certificate_follows_the_name_asked_for(authority: Authority, asked: str, given: str) -> None:
    built = server_tls(
        acceptor(
            authority.pem("one.example", "alias.example"), authority.pem("two.example"), authority.pem("*.wild.example")
        )
    )
    client, _ = handshake(built, trusting(authority), asked)
    assert common_name(client) == given


def test_an_unknown_name_and_none_get_the_first_certificate(authority: Authority) -> None:
    built = server_tls(acceptor(authority.pem("one.example"), authority.pem("two.example")))
    lenient = trusting(authority, verify_host=False)
    for name in ("a.b.wild.example", "other.example", None):
        client, _ = handshake(built, lenient, name)
        assert common_name(client) == "one.example"


def test_a_directory_stands_for_the_stores_in_it(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"has no file \*\.pem, \*\.p12, \*\.pfx$"):
        server_tls(acceptor(tmp_path))
    for name in ("b.example", "a.example"):
        authority.pem(name).rename(tmp_path / f"{name}.pem")
    (tmp_path / "README").write_text("not a store")
    built = server_tls(acceptor(tmp_path))
    assert [certificate.names for certificate in built.certificates] == [("a.example",), ("b.example",)]
    client, _ = handshake(built, trusting(authority), "b.example")
    assert common_name(client) == "b.example"


def test_the_name_asked_for_is_told(authority: Authority) -> None:
    names: list[str] = []
    built = server_tls(acceptor(authority.pem("one.example")), asked=lambda _connection, name: names.append(name))
    handshake(built, trusting(authority), "one.example")
    handshake(built, trusting(authority, verify_host=False), None)
    assert names == ["one.example"]


def test_sni_host_refuses_other_names(authority: Authority) -> None:
    built = server_tls(acceptor(authority.pem("one.example"), sni_host=r"one\..*"))
    handshake(built, trusting(authority), "one.example")
    handshake(built, trusting(authority, verify_host=False), None)
    with pytest.raises(ssl.SSLError):
        handshake(built, trusting(authority, verify_host=False), "two.example")
    with pytest.raises(TlsError, match="is not a regular expression"):
        server_tls(acceptor(authority.pem("one.example"), sni_host="("))


def test_needed_client_certificates(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    built = server_tls(
        acceptor(
            authority.pem("one.example"),
            authority.pem("two.example"),
            need_client_auth=True,
            trust_store_path=authority.path,
        )
    )
    for name in ("one.example", "two.example"):
        _, server = handshake(built, trusting(authority, key_store_path=(authority.pem("client"),)), name)
        assert common_name(server) == "client"
        with pytest.raises(ssl.SSLError):
            handshake(built, trusting(authority), name)
        with pytest.raises(ssl.SSLError):
            handshake(built, trusting(authority, key_store_path=(other.pem("stranger"),)), name)


def test_a_revoked_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    def lists(*revoked: x509.Certificate, until: dt.timedelta = dt.timedelta(days=1), der: bool = False) -> Path:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.name)
            .last_update(NOW - dt.timedelta(days=2))
            .next_update(NOW + until)
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number).revocation_date(NOW).build()
            builder = builder.add_revoked_certificate(entry)
        path = tmp_path / "crl"
        encoding = Encoding.DER if der else Encoding.PEM
        path.write_bytes(builder.sign(authority.key, hashes.SHA256()).public_bytes(encoding))
        return path

    def meet(crl: Path) -> None:
        changes = {"need_client_auth": True, "trust_store_path": authority.path, "crl_path": crl}
        built = server_tls(acceptor(authority.pem("one.example"), **changes))
        handshake(built, trusting(authority, key_store_path=(client,)), "one.example")

    client = authority.pem("client")
    certificate = x509.load_pem_x509_certificates(client.read_bytes())[0]
    meet(lists())
    meet(lists(der=True))
    with pytest.raises(ssl.SSLError, match="revoked"):
        meet(lists(certificate))
    with pytest.raises(ssl.SSLError, match="revoked"):
        meet(lists(certificate, der=True))
    with pytest.raises(ssl.SSLError, match="expired"):
        meet(lists(until=-dt.timedelta(days=1)))
    with pytest.raises(TlsError, match=r"revocation list .* cannot be read"):
        meet(authority.path)
    server = authority.pem("two.example")
    issued = x509.load_pem_x509_certificates(server.read_bytes())[0]
    handshake(server_tls(acceptor(server)), trusting(authority, crl_path=lists(certificate)), "two.example")
    with pytest.raises(ssl.SSLError, match="revoked"):
        handshake(server_tls(acceptor(server)), trusting(authority, crl_path=lists(issued)), "two.example")


def test_wanted_client_certificates(authority: Authority) -> None:
    built = server_tls(acceptor(authority.pem("one.example"), want_client_auth=True, trust_store_path=authority.path))
    _, server = handshake(built, trusting(authority), "one.example")
    assert server.getpeercert() is None
    _, server = handshake(built, trusting(authority, key_store_path=(authority.pem("client"),)), "one.example")
    assert common_name(server) == "client"


def test_a_pkcs12_trust_store(authority: Authority, tmp_path: Path) -> None:
    store = tmp_path / "trust.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            None, None, None, [authority.certificate], BestAvailableEncryption(b"trustit")
        )
    )
    settings = ConnectorSettings(ssl_enabled=True, trust_store_path=store, trust_store_password="trustit")
    handshake(server_tls(acceptor(authority.pem("one.example"))), client_context(settings), "one.example")


def test_old_versions_are_not_spoken(authority: Authority) -> None:
    built = server_tls(acceptor(authority.pem("one.example")))
    assert built.context.minimum_version is ssl.TLSVersion.TLSv1_2
    only = server_tls(acceptor(authority.pem("one.example"), enabled_protocols=("TLSv1.3",)))
    with pytest.raises(ssl.SSLError):
        handshake(only, trusting(authority, enabled_protocols=("TLSv1.2",)), "one.example")
    client, _ = handshake(built, trusting(authority, enabled_protocols=("TLSv1.2",)), "one.example")
    assert client.version() == "TLSv1.2"


@pytest.mark.parametrize(
    ("name", "openssl"),
    [
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ],
)
def test_cipher_names(name: str, openssl: str) -> None:
    assert openssl_cipher(name) == openssl
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(openssl)
    assert openssl in {cipher["name"] for cipher in context.get_ciphers()}


def test_cipher_suites(authority: Authority) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    built = server_tls(acceptor(authority.pem("one.example"), enabled_cipher_suites=(suite,)))
    client, _ = handshake(built, trusting(authority, enabled_protocols=("TLSv1.2",)), "one.example")
    cipher = client.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-CHACHA20-POLY1305"
    with pytest.raises(TlsError, match="none of the cipher suites NONSENSE is known to OpenSSL"):
        server_tls(acceptor(authority.pem("one.example"), enabled_cipher_suites=("NONSENSE",)))
    with pytest.raises(TlsError, match=r"TLS_AES_128_GCM_SHA256 is a TLS 1.3 suite: those are all enabled always"):
        server_tls(acceptor(authority.pem("one.example"), enabled_cipher_suites=("TLS_AES_128_GCM_SHA256",)))


def test_clients_verify_unless_told_otherwise(authority: Authority) -> None:
    built = server_tls(acceptor(authority.pem("one.example")))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(built, client_context(ConnectorSettings(ssl_enabled=True)), "one.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(built, trusting(authority), "two.example")
    handshake(built, client_context(ConnectorSettings(ssl_enabled=True, trust_all=True)), "two.example")


def test_management_has_the_same_settings(authority: Authority) -> None:
    management = Management(ssl_enabled=True, key_store_path=(authority.pem("one.example"),))
    handshake(server_tls(management), trusting(authority), "one.example")


def test_stores_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(TlsError, match=f"^key store {missing} cannot be read: No such file or directory$"):
        server_tls(acceptor(missing))
    with pytest.raises(TlsError, match=r"^TLS needs a key store$"):
        server_tls(acceptor())
    java = tmp_path / "store.jks"
    java.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    with pytest.raises(
        TlsError, match=r"convert it: pollux migrate, or keytool -importkeystore -srckeystore store\.jks"
    ):
        server_tls(acceptor(java))
    with pytest.raises(TlsError, match="has a certificate but no private key"):
        server_tls(acceptor(authority.path))
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(TlsError, match="has no readable certificate"):
        server_tls(acceptor(broken))
    with pytest.raises(TlsError, match=r"trust store .* has no usable certificate"):
        client_context(ConnectorSettings(trust_store_path=broken))
    mixed = tmp_path / "mixed.pem"
    key, _ = authority.issue("a")
    mixed.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + authority.certificate.public_bytes(Encoding.PEM)
    )
    with pytest.raises(TlsError, match="the key does not fit the certificate"):
        server_tls(acceptor(mixed))
    big = tmp_path / "big.pem"
    big.write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    with pytest.raises(TlsError, match="is larger than 4 MiB"):
        server_tls(acceptor(big))
    with pytest.raises(TlsError, match="no trust store says whose are accepted"):
        server_tls(acceptor(authority.pem("one.example"), need_client_auth=True))
