"""Log-in, permissions and limits as sessions use them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from pollux.config.model import Configuration, RoleMapping, SecuritySetting
from pollux.config.model import Security as SecurityConfig
from pollux.config.users import Users, normalise_dn
from pollux.config.verifiers import MINIMUM_ITERATIONS, Verifier
from pollux.engine.peer import Peer
from pollux.engine.security import REFUSED, Identity, Permission, Security
from pollux.errors import AuthenticationError, LimitError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    ClientFinal = Callable[..., tuple[str, str]]

ADA = Verifier.create("castor", iterations=MINIMUM_ITERATIONS)
USERS = Users(
    {"ada": ADA, "bob": Verifier.create("pollux", iterations=MINIMUM_ITERATIONS)},
    {"ada": frozenset({"amq"}), "bob": frozenset({"readers"})},
    (("ada", normalise_dn("CN=Ada,O=Twins"), None),),
    b"k" * 32,
)
PEER = Peer(1, "192.0.2.7", 5000)


def setting(match: str, **permissions: str) -> SecuritySetting:
    return SecuritySetting(match, {name: frozenset(roles.split(",")) for name, roles in permissions.items()})


CONFIGURATION = Configuration(
    security_settings=(
        setting("#", send="amq", consume="amq", manage="amq"),
        setting("orders.#", send="amq,readers", consume="readers"),
        setting("orders.secret", consume="amq"),
        setting("orders.eu::q1", consume="special"),
    ),
    security=SecurityConfig(login_delay=10, max_login_delay=100),
)


@pytest.fixture
def security() -> Iterator[Security]:
    made = Security(CONFIGURATION, USERS)
    yield made
    made.close()


async def test_the_right_password(security: Security) -> None:
    identity = await security.authenticate_password("ada", "castor", PEER)
    assert identity == Identity("ada", frozenset({"amq"}))


@pytest.mark.parametrize(
    ("user", "password"),
    [("ada", "wrong"), ("ada", ""), ("ada", None), ("eve", "castor"), ("", "castor"), (None, "castor"),
     ("ada", "x" * 5000), ("a" * 5000, "castor"), ("ada", "\0"), ("ada\ud800", "castor")],
)  # fmt: skip
async def test_anything_else_is_refused_alike(security: Security, user: str | None, password: str | None) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await security.authenticate_password(user, password, PEER)
    assert str(caught.value) == REFUSED


async def test_unknown_users_take_as_long_as_known_ones(security: Security) -> None:
    checked: list[Verifier] = []
    original = Verifier.verify

    def counting(self: Verifier, password: str) -> bool:
        checked.append(self)
        return original(self, password)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Verifier, "verify", counting)
        for user in ("ada", "eve"):
            with pytest.raises(AuthenticationError):
                await security.authenticate_password(user, "wrong", replace(PEER, address=user))
    # The same derivation, with the same cost, for both: no timing tells which exists.
    assert len(checked) == 2
    assert checked[0].iterations == checked[1].iterations
    assert len(checked[0].salt) == len(checked[1].salt)


async def test_an_invented_salt_stays_the_same(security: Security) -> None:
    first = security.scram("SCRAM-SHA-256").first(b"n,,n=eve,r=abc").decode()
    second = Security(CONFIGURATION, USERS).scram("SCRAM-SHA-256").first(b"n,,n=eve,r=abc").decode()
    other = security.scram("SCRAM-SHA-256").first(b"n,,n=eva,r=abc").decode()
    assert first.split(",")[1:] == second.split(",")[1:]
    assert first.split(",")[1] != other.split(",")[1]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that are checked."""
    found: list[str] = []
    original = Verifier.verify

    def counting(self: Verifier, password: str) -> bool:
        found.append(password)
        return original(self, password)

    monkeypatch.setattr(Verifier, "verify", counting)
    return found


async def test_success_is_remembered_and_a_new_password_forgets_it(security: Security, checks: list[str]) -> None:
    for _ in range(3):
        await security.authenticate_password("ada", "castor", PEER)
    assert len(checks) == 1
    renewed = Verifier.create("other", iterations=MINIMUM_ITERATIONS)
    security.reload(CONFIGURATION, dataclasses.replace(USERS, verifiers={"ada": renewed}))
    with pytest.raises(AuthenticationError):
        await security.authenticate_password("ada", "castor", PEER)


async def test_a_thousand_reconnects_of_one_user_are_one_check(security: Security, checks: list[str]) -> None:
    peers = [Peer(number, "192.0.2.7", number) for number in range(1000)]
    found = await asyncio.gather(*(security.authenticate_password("ada", "castor", peer) for peer in peers))
    assert len(found) == 1000
    assert len(checks) == 1


class Guesses:
    """How many passwords are checked, all wrong, and how many of them at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.checked = 0
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()
        patch.setattr(Verifier, "verify", self._verify)

    def _verify(self, _password: str) -> bool:
        with self._lock:
            self.checked += 1
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.001)
        with self._lock:
            self.running -= 1
        return False


async def tried(security: Security, guesses: Iterable[tuple[str, str]], source: str = "192.0.2.7") -> None:
    """All at once, each over a connection of its own."""
    found = await asyncio.gather(
        *(
            security.authenticate_password(user, password, Peer(number, source, number))
            for number, (user, password) in enumerate(guesses)
        ),
        return_exceptions=True,
    )
    assert all(isinstance(each, AuthenticationError) for each in found), found


async def test_guesses_at_the_same_time_are_checked_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure doubles the pause before the next: 0, 20, 40, 80, 100, 100 ms. The others are refused unchecked."""
    configuration = replace(CONFIGURATION, security=SecurityConfig(login_delay=20, max_login_delay=100))
    security, guesses = Security(configuration, USERS), Guesses(monkeypatch)
    await tried(security, [("ada", f"guess-{number}") for number in range(200)])
    security.close()
    assert guesses.most == 1
    assert guesses.checked <= 5


async def test_names_guessed_at_the_same_time_from_one_source_are_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = replace(CONFIGURATION, security=SecurityConfig(login_delay=50, max_login_delay=100))
    security, guesses = Security(configuration, USERS), Guesses(monkeypatch)
    await tried(security, [(f"user{number}", "12345678") for number in range(200)])
    security.close()
    assert guesses.most <= 2
    assert guesses.checked <= 10


async def test_a_guesser_that_leaves_gets_no_more_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection closed before the answer is a guess all the same."""
    configuration = replace(CONFIGURATION, security=SecurityConfig(login_delay=20, max_login_delay=100))
    security, guesses = Security(configuration, USERS), Guesses(monkeypatch)
    for number in range(50):
        attempt = asyncio.create_task(security.authenticate_password("ada", f"guess-{number}", PEER))
        await asyncio.sleep(0)
        attempt.cancel()
    await tried(security, [("ada", "last")])
    security.close()
    assert guesses.most == 1
    assert guesses.checked <= 5


async def test_scram_guesses_at_the_same_time_are_checked_one_after_the_other(client_final: ClientFinal) -> None:
    """All exchanges are begun before the first ends."""
    configuration = replace(CONFIGURATION, security=SecurityConfig(login_delay=20, max_login_delay=100))
    security = Security(configuration, USERS)
    exchanges = []
    for number in range(100):
        scram = security.scram("SCRAM-SHA-256", Peer(number, "192.0.2.7", number))
        first = scram.first(b"n,,n=ada,r=abc").decode()
        exchanges.append(scram.final(client_final(f"guess-{number}", "n=ada,r=abc", first)[0].encode()))
    found = await asyncio.gather(*exchanges, return_exceptions=True)
    security.close()
    assert {str(each) for each in found} == {REFUSED}
    assert security.failures == 100
    assert security.checks <= 5


async def test_the_right_password_among_guesses_at_the_same_time(security: Security) -> None:
    """Who waits behind a log-in that succeeds is not held by it, and its own password is its own."""
    found = await asyncio.gather(
        *(
            security.authenticate_password("ada", password, Peer(number, "192.0.2.7", number))
            for number, password in enumerate(("castor", "wrong", "castor"))
        ),
        return_exceptions=True,
    )
    assert [type(each) for each in found] == [Identity, AuthenticationError, Identity]


async def test_a_password_that_is_remembered_is_not_found_by_guessing_elsewhere() -> None:
    """That its owner has just logged in makes no guess from another source an exception."""
    configuration = replace(CONFIGURATION, security=SecurityConfig(login_delay=20, max_login_delay=100))
    security = Security(configuration, USERS)
    await security.authenticate_password("ada", "castor", PEER)
    guesses = [("ada", f"guess-{number}") for number in range(200)]
    await tried(security, [*guesses, ("ada", "castor")], "198.51.100.1")
    # Where it logged in before it goes on as before.
    await security.authenticate_password("ada", "castor", PEER)
    security.close()


async def test_failures_are_logged_with_source_and_slowed_down(caplog: pytest.LogCaptureFixture) -> None:
    configuration = replace(CONFIGURATION, security=SecurityConfig(login_delay=60, max_login_delay=10_000))
    security = Security(configuration, USERS)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, "pollux.security"):
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                await security.authenticate_password("ada", "wrong-password", PEER)
    assert time.monotonic() - started > 0.06 + 0.12
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert [entry["attempts"] for entry in fields] == [1, 2, 3]
    assert all(entry["source"] == "192.0.2.7" and entry["user"] == "ada" for entry in fields)
    assert "wrong-password" not in str(fields)


async def test_scram_failures_hold_the_next_check(client_final: ClientFinal) -> None:
    configuration = replace(CONFIGURATION, security=SecurityConfig(login_delay=60, max_login_delay=10_000))
    security = Security(configuration, USERS)
    started = time.monotonic()
    for _ in range(3):
        scram = security.scram("SCRAM-SHA-256", PEER)
        first = scram.first(b"n,,n=ada,r=abc").decode()
        message, _ = client_final("wrong", "n=ada,r=abc", first)
        with pytest.raises(AuthenticationError, match=REFUSED):
            await scram.final(message.encode())
    assert time.monotonic() - started > 0.06 + 0.12


async def test_scram_success(security: Security, client_final: ClientFinal) -> None:
    scram = security.scram("SCRAM-SHA-256", PEER)
    first = scram.first(b"n,,n=ada,r=abc").decode()
    message, expected = client_final("castor", "n=ada,r=abc", first)
    assert (await scram.final(message.encode())).decode() == expected
    assert scram.identity == Identity("ada", frozenset({"amq"}))
    with pytest.raises(AuthenticationError):
        security.scram("SCRAM-SHA-1")


async def test_anonymous_only_when_configured(security: Security) -> None:
    assert not security.anonymous_allowed
    with pytest.raises(AuthenticationError, match="no anonymous"):
        security.anonymous(PEER)
    with pytest.raises(AuthenticationError):
        await security.authenticate_password(None, None, PEER)
    allowed = Security(
        replace(CONFIGURATION, security=SecurityConfig(anonymous_user="guest", anonymous_roles=("readers",))), USERS
    )
    assert await allowed.authenticate_password(None, None, PEER) == Identity("guest", frozenset({"readers"}))
    allowed.check(allowed.anonymous(PEER), Permission.consume, "orders.eu")


async def test_security_disabled() -> None:
    open_to_all = Security(replace(CONFIGURATION, security_enabled=False), Users())
    identity = await open_to_all.authenticate_password("whoever", "x", PEER)
    open_to_all.check(identity, Permission.manage, "anything")


def test_certificates(security: Security) -> None:
    identity = security.authenticate_certificate(replace(PEER, certificate_subject="CN=Ada,O=Twins"))
    assert identity.user == "ada"
    for subject in (None, "CN=Eve"):
        with pytest.raises(AuthenticationError):
            security.authenticate_certificate(replace(PEER, certificate_subject=subject))


ADA_IDENTITY = Identity("ada", frozenset({"amq"}))
BOB_IDENTITY = Identity("bob", frozenset({"readers"}))


@pytest.mark.parametrize(
    ("case", "allowed"),
    [
        ((ADA_IDENTITY, Permission.send, "anything", None), True),
        ((BOB_IDENTITY, Permission.send, "anything", None), False),
        ((BOB_IDENTITY, Permission.send, "orders.eu", None), True),
        ((ADA_IDENTITY, Permission.consume, "orders.eu", None), False),  # nothing is inherited from "#"
        ((BOB_IDENTITY, Permission.consume, "orders.eu", "q2"), True),
        ((BOB_IDENTITY, Permission.consume, "orders.eu", "q1"), False),  # the FQQN's own setting goes first
        ((BOB_IDENTITY, Permission.consume, "orders.secret", None), False),
        ((ADA_IDENTITY, Permission.consume, "orders.secret", None), True),
        ((ADA_IDENTITY, Permission.browse, "anything", None), False),
    ],
)
def test_permissions(security: Security, case: tuple[Identity, Permission, str, str | None], *, allowed: bool) -> None:
    identity, permission, address, queue = case
    for _ in range(2):  # resolved, then from the cache
        assert security.permitted(identity, permission, address, queue) is allowed
        if allowed:
            security.check(identity, permission, address, queue)
        else:
            with pytest.raises(NotPermittedError, match=permission.name):
                security.check(identity, permission, address, queue)


def test_permissions_follow_a_reload(security: Security) -> None:
    security.check(ADA_IDENTITY, Permission.send, "a")
    gone = security.reload(CONFIGURATION, dataclasses.replace(USERS, verifiers={"ada": ADA}, roles={}))
    assert gone == {"bob"}
    with pytest.raises(NotPermittedError):
        security.check(ADA_IDENTITY, Permission.send, "a")


def test_role_mapping() -> None:
    configuration = replace(CONFIGURATION, role_mappings=(RoleMapping("readers", ("amq",)),))
    security = Security(configuration, USERS)
    security.check(BOB_IDENTITY, Permission.send, "anything")


def test_the_broker_s_own_user_may_do_everything(security: Security) -> None:
    security.check(Identity("local", administrator=True), Permission.manage, "orders.secret")


def test_decisions_kept_are_bounded() -> None:
    security = Security(replace(CONFIGURATION, authorization_cache_size=10), USERS)
    for number in range(100):
        security.permitted(ADA_IDENTITY, Permission.send, f"a{number}")
    assert len(security._granted) <= 10


def test_connection_limits() -> None:
    limits = replace(CONFIGURATION.limits, max_connections_per_user=2)
    security = Security(replace(CONFIGURATION, limits=limits), USERS)
    for number in (1, 2):
        security.connection_opened(ADA_IDENTITY, Peer(number, "a", 1))
    security.connection_opened(ADA_IDENTITY, Peer(2, "a", 1))  # counted once
    with pytest.raises(LimitError, match="'ada' has 2 connections"):
        security.connection_opened(ADA_IDENTITY, Peer(3, "a", 1))
    security.connection_opened(BOB_IDENTITY, Peer(4, "a", 1))
    security.connection_closed(ADA_IDENTITY, Peer(1, "a", 1))
    security.connection_closed(None, Peer(1, "a", 1))
    security.connection_opened(ADA_IDENTITY, Peer(3, "a", 1))
