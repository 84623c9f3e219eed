"""A broker without sockets whose security is the real one, with clients of the three protocols: ann and bob."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from harness.sessions import amqp, broker, mqtt, stomp
from harness.sessions.office import TIMEOUT
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


class Hub(broker.Broker):
    """Clients' ways into one broker, without sockets. ``rules`` are the security-settings."""

    def __init__(self, directory: Path, *rules: SecuritySetting, **settings: object) -> None:
        configuration = Configuration(
            security_settings=rules or (setting("#"),), security=SecurityConfig(login_delay=10), **cast("Any", settings)
        )
        super().__init__(directory, configuration, parameters=stomp.PREFIXES)
        self.security: Security = Security(
            configuration,
            USERS,
            on_login=lambda connection, user: self.post.memory.opened(connection, user),  # noqa: PLW0108  (not there yet)
            on_logout=lambda connection: self.post.memory.closed(connection),  # noqa: PLW0108
        )

    @staticmethod
    def security_of(*rules: SecuritySetting) -> Security:
        """Only the security of these rules."""
        return Security(Configuration(security_settings=rules, security=SecurityConfig(login_delay=10)), USERS)

    def join_security(self) -> None:
        """Join the post office and its security as the server does."""
        self.post.space.admits = partial(admits, self.security)
        self.post.address_manager.ask = self.security.ask

    def grant(self, *rules: SecuritySetting) -> None:
        """The configuration is read again, with these security-settings."""
        self.configuration = replace(self.configuration, security_settings=rules)
        self.security.reload(self.configuration, USERS)
        self.post.address_manager.reload_rights()

    async def amqp(self, user: str, container: str = "c", **options: Any) -> amqp.Client:
        client = amqp.Client(
            self, container, mechanisms="EXTERNAL", peer={"certificate_subject": f"CN={user}", "tls": True}, **options
        )
        return await client.opened()

    async def stomp(self, user: str, client_id: str = "c", **headers: str) -> stomp.Client:
        client = stomp.Client(self, certificate_subject=f"CN={user}")
        self.sessions.append(client.session)
        lines = {"accept-version": "1.2", "host": "test", "client-id": client_id, **headers}
        client.send(b"CONNECT\n" + "".join(f"{key}:{value}\n" for key, value in lines.items()).encode() + b"\n\0")
        await self.settle()
        assert client.one()[0] == "CONNECTED"
        client.decoder.accept(client.version)
        return client

    async def mqtt(self, user: str, client_id: str = "c", *, connect: bool = True, **options: Any) -> mqtt.Client:
        client = mqtt.Client(self, certificate_subject=f"CN={user}")
        self.sessions.append(client.session)
        if connect:
            answer = await client.connect(client_id, **options)
            assert answer.reason == 0
        return client

    async def stop(self) -> None:
        await super().stop()
        self.security.close()


async def frames(client: stomp.Client, hub: Hub, count: int = 1) -> list[tuple[str, dict[str, str], bytes]]:
    """The next ``count`` frames the client gets."""
    found: list[tuple[str, dict[str, str], bytes]] = []
    async with asyncio.timeout(TIMEOUT):
        while len(found) < count:
            await hub.settle()
            found += client.received()
    return found
