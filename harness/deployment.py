"""A pair deployed by site.yml, with recognisable secrets everywhere a secret can be, and everything seen meanwhile."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from harness.bundle import Run, Site, command_lines
from harness.tls import make_certificates

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Planted in the inventory, by what they are.
CANARIES = {
    "the user's password": "canary-user-7Qx2Lw9d",
    "the drill's password": "canary-drill-5Vt8Rk3p",
    "the cluster password": "canary-cluster-3Hn6Zb1s",
    "the key of the users file": "canary-userskey-8Jm4Fy2c",
}


class Deployment:
    """The pair, its canaries, and the runs that made it."""

    def __init__(self, directory: Path) -> None:
        make_certificates(directory / "tls")
        certificate, _, key = (directory / "tls" / "broker.pem").read_text().partition("-----BEGIN PRIVATE KEY")
        (directory / "tls" / "certificate.pem").write_text(certificate)
        self.key = directory / "tls" / "key.pem"
        self.key.touch(mode=0o600)
        self.key.write_text(f"-----BEGIN PRIVATE KEY{key}")
        #: Texts that must be seen nowhere, by what they are.
        self.secrets = {**CANARIES, "the TLS key": key.splitlines()[2]}
        self.variables: dict[str, Any] = {
            "broker_acceptors": [
                {"name": "all", "port": 61616, "protocols": ["AMQP", "STOMP", "MQTT"]},
                {"name": "tls", "port": 61617, "protocols": ["AMQP"], "tls": True},
            ],
            "broker_tls_certificate": str(directory / "tls" / "certificate.pem"),
            "broker_tls_key": str(self.key),
            "broker_cluster_password": CANARIES["the cluster password"],
            "broker_users_key": CANARIES["the key of the users file"],
            # The drill reads its password from the secrets file, so it is generated.
            "broker_users": [
                {"name": "demo", "roles": ["amq"], "password": CANARIES["the user's password"]},
                {"name": "operator", "roles": ["admin"], "password": CANARIES["the drill's password"]},
                {"name": "drill", "roles": ["amq", "admin"]},
            ],
        }
        self.site = Site(directory, self.variables)
        #: Runs with -vvv and --diff: on an empty directory in check mode, the first one, and a second one.
        self.checked: Run
        self.first: Run
        #: What the run in check mode left in the directory of the brokers.
        self.left_by_check: list[str] = []
        #: How often the process list was looked at while the first run went on, and where a secret was seen.
        self.looks = 0
        self.seen: set[str] = set()
        self._settled = True

    def deploy(self) -> None:
        """Run site.yml, first in check mode, as an operator's Ansible does; what comes later goes through Mitogen."""
        through_mitogen, self.site.strategy = self.site.strategy, {}
        self.checked = self.site.run("site.yml", "-vvv", "--check", "--diff")
        self.left_by_check = sorted(path.name for path in self.site.local.rglob("*"))
        self.first = self.site.run("site.yml", "-vvv", "--diff", watch=self._look)
        assert self.first.code == 0, self.first.output[-8000:]
        self.site.strategy = through_mitogen

    def reconfigure(self, extra: Mapping[str, Any], *flags: str) -> Run:
        """Run site.yml with other values of some variables; `settle` undoes it."""
        self._settled = False
        return self.site.run("site.yml", *flags, extra=extra).succeeded()

    def unsettle(self) -> None:
        """Note that something else than the configuration is changed; `settle` undoes it by running site.yml."""
        self._settled = False

    def settle(self) -> None:
        """Bring the configuration back to what it was deployed with."""
        if not self._settled:
            self.site.run("site.yml").succeeded()
            self._settled = True

    def spellings(self) -> list[tuple[str, bytes]]:
        """Return what each secret is, and the ways it could be written."""
        return [
            (what, text)
            for what, secret in self.secrets.items()
            for text in (secret.encode(), base64.b64encode(secret.encode()).rstrip(b"="))
        ]

    def _look(self) -> None:
        self.looks += 1
        for _, command in command_lines():
            for what, text in self.spellings():
                if text in command:
                    self.seen.add(f"{what} in {command.decode(errors='replace')}")
