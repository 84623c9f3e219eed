"""A broker without sockets whose security is the real one, with clients of the three protocols: ann and bob."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from broker.amqp import harness as amqp
from broker.mqtt import mqtt_harness as mqtt
from broker.stomp import stomp_fakes as stomp
from pollux.config.model import Configuration, SecuritySetting
from pollux.config.model import Security as SecurityConfig
from pollux.config.users import Users, normalise_dn
from pollux.config.verifiers import MINIMUM_ITERATIONS, Verifier
from pollux.engine.reading_rights import admits
from pollux.engine.security import Security

if TYPE_CHECKING:
    from pathlib import Path

WORD = "castor"
PEOPLE = ("ann", "bob")
_VERIFIER = Verifier.create(WORD, iterations=MINIMUM_ITERATIONS)
USERS = Users(
    dict.fromkeys(PEOPLE, _VERIFIER),
    {user: frozenset({user, "all"}) for user in PEOPLE},
    tuple((user, normalise_dn(f"CN={user}"), None) for user in PEOPLE),
    b"k" * 32,
)


def setting(match: str, roles: str = "all", **permissions: str) -> SecuritySetting:
    """Everything for ``roles``, but what is given."""
    every = ("send", "browse", "createAddress", "createDurableQueue", "createNonDurableQueue", "consume")
    names = {*every, "deleteDurableQueue", "deleteNonDurableQueue", "deleteAddress"}
    return SecuritySetting(
        match, {name: frozenset(permissions.get(name, roles).split(",")) - {""} for name in sorted(names)}
    )


class Hub(amqp.Broker):
    """See the module. ``rules`` are the security-settings."""

    def __init__(self, directory: Path, *rules: SecuritySetting, **settings: object) -> None:
        configuration = Configuration(
            security_settings=rules or (setting("#"),), security=SecurityConfig(login_delay=10), **cast("Any", settings)
        )
        super().__init__(directory, configuration)
        self.security = cast(
            "Any",
            Security(
                configuration,
                USERS,
                on_login=self._logged_in,
                on_logout=self._logged_out,
            ),
        )
        self.parameters = {"anycastPrefix": "/queue/", "multicastPrefix": "/topic/"}

    @staticmethod
    def security_of(*rules: SecuritySetting) -> Security:
        """Only the security of these rules."""
        return Security(Configuration(security_settings=rules, security=SecurityConfig(login_delay=10)), USERS)

    def _logged_in(self, connection_id: int, user: str) -> None:
        self.post.memory.opened(connection_id, user)

    def _logged_out(self, connection_id: int) -> None:
        self.post.memory.closed(connection_id)

    async def start(self, *, persistent: bool = True) -> None:
        await super().start(persistent=persistent)
        self.apply_rights()

    def apply_rights(self) -> None:
        """What the server does with the post office for its security."""
        self.post.space.admits = partial(admits, cast("Any", self.security))
        self.post.address_manager.ask = cast("Any", self.security).ask

    def grant(self, *rules: SecuritySetting) -> None:
        """The configuration is read again, with these security-settings."""
        self.configuration = Configuration(security_settings=rules, security=self.configuration.security)
        cast("Any", self.security).reload(self.configuration, USERS)
        self.post.address_manager.reload_rights()

    async def amqp(self, user: str, container: str = "c", **options: Any) -> amqp.Client:
        client = self.client(
            container, mechanisms="EXTERNAL", peer={"certificate_subject": f"CN={user}", "tls": True}, **options
        )
        return await client.opened()

    async def stomp(self, user: str, client_id: str = "c", **headers: str) -> stomp.Client:
        self.connections += 1
        client = stomp.Client(cast("Any", self), self.connections)
        self.sessions.append(cast("Any", client.session))
        client.session.transport.peer = client.session.transport.peer.__class__(
            self.connections, "127.0.0.1", 5000, certificate_subject=f"CN={user}"
        )
        lines = {"accept-version": "1.2", "host": "test", "client-id": client_id, **headers}
        client.send(b"CONNECT\n" + "".join(f"{key}:{value}\n" for key, value in lines.items()).encode() + b"\n\0")
        await self.settle()
        assert client.one()[0] == "CONNECTED"
        client.decoder.accept(client.version)
        return client

    async def mqtt(self, user: str, client_id: str = "c", *, connect: bool = True, **options: Any) -> mqtt.Client:
        made = SimpleNamespace(loop=self.loop, connections=self.connections, services=self.services())
        made.settle = self.settle
        client = mqtt.Client(cast("Any", made), 5, certificate_subject=f"CN={user}")
        self.connections = made.connections
        self.sessions.append(cast("Any", client.session))
        if connect:
            answer = await client.connect(client_id, **options)
            assert answer.reason == 0
        return client

    async def stop(self) -> None:
        await super().stop()
        cast("Any", self.security).close()


async def frames(client: stomp.Client, hub: Hub, count: int = 1) -> list[tuple[str, dict[str, str], bytes]]:
    """The next ``count`` frames the client gets."""
    found: list[tuple[str, dict[str, str], bytes]] = []
    async with asyncio.timeout(amqp.DEADLINE):
        while len(found) < count:
            await hub.settle()
            found += client.received()
    return found
