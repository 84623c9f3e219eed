"""Who a client is and what it may do.

Passwords are checked against SCRAM verifiers in a thread (PBKDF2 releases the interpreter), certificates
against a mapping file, permissions against broker.xml's security-settings: the most specific match wins.
Sessions call this; it knows no socket and no protocol but SCRAM's messages.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import secrets
import sys
import time
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.audit import Trail
from pollux.caches import make_room
from pollux.config.model import PermissionsResolver
from pollux.config.model import PermissionType as Permission
from pollux.config.saslprep import saslprep
from pollux.config.users import Users
from pollux.config.verifiers import DEFAULT_ITERATIONS, Verifier
from pollux.engine.scram import MAXIMUM_MESSAGE, ScramExchange
from pollux.engine.throttle import Throttle, pair_of
from pollux.engine.turns import Turns
from pollux.errors import AuthenticationError, LimitError, NotPermittedError
from pollux.logs import event
from pollux.message import LONG_NAME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pollux.config.model import Configuration
    from pollux.engine.peer import Peer

__all__ = ["Identity", "Permission", "ScramServer", "Security"]

#: The address whose ``manage`` permission opens the HTTP API, as in Artemis.
MANAGEMENT_ADDRESS = "activemq.management"
SCRAM_MECHANISM = "SCRAM-SHA-256"
#: What every refused log-in is told, whatever was wrong.
REFUSED = "the user name or the password is wrong"
NOT_CHECKED = "too many failed attempts, not checked"
#: Longest user name and password taken, characters.
MAXIMUM_CREDENTIAL = 1024
#: PBKDF2 in flight at a time: each takes a core; more would take the event loop's.
_CHECKERS = 2
#: Different passwords that may wait to be checked for one user from one source.
_WAITING_GUESSES = 100
_NO_ROLES: frozenset[str] = frozenset()

logger = logging.getLogger("pollux.security")


class Identity(Struct, frozen=True):
    """A proven user. ``roles`` are those at log-in; checks use what the files say now.

    ``administrator`` is the operating system user that runs the broker, who may do everything.
    """

    user: str
    roles: frozenset[str] = _NO_ROLES
    administrator: bool = False


class ScramServer:
    """One SCRAM exchange of one connection: ``first`` then ``final``; then ``identity`` is set."""

    __slots__ = ("_exchange", "_peer", "_security", "identity")

    def __init__(self, security: Security, exchange: ScramExchange, peer: Peer | None) -> None:
        self._security = security
        self._exchange = exchange
        self._peer = peer
        self.identity: Identity | None = None

    def first(self, message: bytes) -> bytes:
        """client-first in, server-first out. Raises AuthenticationError."""
        try:
            return self._exchange.first(message)
        except AuthenticationError as error:
            self._security.log_failure(self._exchange.user, self._peer, SCRAM_MECHANISM, str(error))
            raise

    async def final(self, message: bytes) -> bytes:
        """client-final in, server-final out. Raises AuthenticationError, late when there were failures before."""
        user, source = self._exchange.user, self._peer.address if self._peer is not None else ""
        try:
            async with self._security.admitted(source, user):
                self._security.checks += 1
                answer = self._exchange.final(message)
                self.identity = self._security.succeeded(user, self._peer)
                return answer
        except TimeoutError:
            self._security.log_failure(user, self._peer, SCRAM_MECHANISM, NOT_CHECKED)
            raise AuthenticationError(REFUSED) from None
        except AuthenticationError as error:
            self._security.failed(user, self._peer, SCRAM_MECHANISM, str(error))
            raise AuthenticationError(REFUSED) from error


class _Attempt(Struct, frozen=True):
    """How a password's check ended. ``refusal``: for the log; None: it was right. ``attempts``: failed ones so far."""

    refusal: str | None = None
    attempts: int | None = None


class Security:
    """Authentication, permissions and limits of one broker. All methods are called in the loop's thread.

    ``on_login`` is told of each connection (by id) that has logged in, and as whom, ``on_logout`` when it is gone.
    """

    def __init__(
        self,
        configuration: Configuration,
        users: Users,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_login: Callable[[int, str], None] | None = None,
        on_logout: Callable[[int], None] | None = None,
        trail: Trail | None = None,
    ) -> None:
        self._clock = clock
        self._trail = trail or Trail.off()
        self._on_login = on_login
        self._on_logout = on_logout
        self._hash_key = secrets.token_bytes(32)
        self._executor = ThreadPoolExecutor(_CHECKERS, thread_name_prefix="pollux-login")
        self._throttle = Throttle(
            configuration.security.login_delay / 1000, configuration.security.max_login_delay / 1000
        )
        #: One check for each user and source; and no more for a source than can be carried out at a time.
        self._users_turns = Turns(1, _WAITING_GUESSES)
        self._source_turns = Turns(_CHECKERS, sys.maxsize)
        #: By source and what :attr:`_verified` has.
        self._attempts: dict[tuple[str, bytes], asyncio.Task[_Attempt]] = {}
        #: HMAC of user, password and verifier -> until when it holds.
        self._verified: OrderedDict[bytes, float] = OrderedDict()
        self._checking: dict[bytes, asyncio.Future[bool]] = {}
        self._granted: dict[tuple[str, str, str | None], frozenset[str]] = {}
        self._everywhere: dict[tuple[str, str], bool] = {}
        #: Connection id -> user, and how many each user has.
        self._connections: dict[int, str] = {}
        self._per_user: Counter[str] = Counter()
        #: Passwords and proofs that were really looked at.
        self.checks = 0
        self.failures = 0
        self.successes = 0
        self._users = Users()
        self.reload(configuration, users)

    def reload(self, configuration: Configuration, users: Users) -> set[str]:
        """Use these from now on. Returns the users that are gone: their connections are to be closed."""
        known = set(self._users.verifiers)
        self._configuration = configuration
        # A match with "::" is about one queue (or a pattern of FQQNs) and goes before those about addresses.
        settings = configuration.security_settings
        self._address_settings = tuple(setting for setting in settings if "::" not in setting.match)
        self._at_address = PermissionsResolver(configuration, self._address_settings)
        self._at_queue = PermissionsResolver(configuration, (setting for setting in settings if "::" in setting.match))
        self._users = users
        self._enabled = configuration.security_enabled
        self._anonymous = configuration.security.anonymous_user
        self._role_mappings = {
            mapping.from_role: frozenset(mapping.to_roles) for mapping in configuration.role_mappings
        }
        counted = Counter(verifier.iterations for verifier in users.verifiers.values())
        #: Unknown users are shown the iterations most users have.
        self._decoy_iterations = counted.most_common(1)[0][0] if counted else DEFAULT_ITERATIONS
        self._granted.clear()
        self._everywhere.clear()
        self._verified.clear()
        self._limits = {limit.match: limit for limit in configuration.resource_limit_settings}
        return known - set(users.verifiers)

    def close(self) -> None:
        """Let the checking threads end."""
        for attempt in list(self._attempts.values()):
            attempt.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    # -- who

    async def authenticate_password(self, user: str | None, password: str | None, peer: Peer) -> Identity:
        """The identity that ``user`` and ``password`` prove; no user at all means anonymous.

        Raises AuthenticationError, late when there were failures before; its text never says which part was wrong.
        """
        if not self._enabled:
            return Identity(user or self._anonymous or "anonymous")
        if user is None and password is None:
            return self.anonymous(peer)
        name, secret = self._prepare(user or "", password or "")
        verifier, known = self._lookup(name)
        key = self._cache_key(name, secret, verifier)
        now = self._clock()
        # Only where this user has logged in before: elsewhere the right one would be found by guesses at the same time.
        if known and self._remembers(key, now) and self._throttle.trusts(peer.address, name, now):
            self._throttle.succeeded(peer.address, name, now)
            return self._identity(name)
        running = self._attempts.get((peer.address, key))
        if running is None:
            # A task of its own: it counts even if the client leaves before it has its answer.
            attempt = self._attempt(name, secret, verifier, key, peer.address, known=known)
            running = self._attempts[peer.address, key] = asyncio.get_running_loop().create_task(attempt)
            running.add_done_callback(lambda _: self._attempts.pop((peer.address, key), None))
        outcome = await asyncio.shield(running)
        if outcome.refusal is not None:
            self.log_failure(name, peer, "password", outcome.refusal, outcome.attempts)
            raise AuthenticationError(REFUSED)
        return self.succeeded(name, peer)

    async def _attempt(
        self, user: str, secret: str, verifier: Verifier, key: bytes, source: str, *, known: bool
    ) -> _Attempt:
        """Check a password when its turn comes, for every connection from ``source`` that waits with it."""
        try:
            async with self.admitted(source, user):
                correct = self._remembers(key, self._clock()) or await self._check(key, secret, verifier)
                if correct and known and secret:
                    self._remember(key)
                    self._throttle.succeeded(source, user, self._clock())
                    return _Attempt()
                return _Attempt(REFUSED, self._throttle.failed(source, user, self._clock()))
        except TimeoutError:
            return _Attempt(NOT_CHECKED)

    @asynccontextmanager
    async def admitted(self, source: str, user: str) -> AsyncIterator[None]:
        """The turn to check one password or proof, which has to be counted before it ends.

        It comes when no other one of this user from this source is being checked, and the pause that earlier failures
        demand is over: however many try at the same time, they are checked one after the other. Raises TimeoutError
        for what is to be refused unchecked.
        """
        longest = self._throttle.maximum
        async with self._users_turns.turn(pair_of(source, user), longest):
            async with self._source_turns.turn(source, None):
                wait = self._throttle.reserve(source, user, self._clock())
                if wait is None:
                    raise TimeoutError
                if wait <= 0.0:
                    yield
                    return
            await asyncio.sleep(wait)
            async with self._source_turns.turn(source, None):
                yield

    def authenticate_certificate(self, peer: Peer) -> Identity:
        """The identity the client's verified certificate is mapped to (certificate-users-file)."""
        subject = peer.certificate_subject
        user = self._users.certificate_user(subject) if subject is not None else None
        if user is None:
            reason = "the client showed no certificate" if subject is None else "the certificate is mapped to no user"
            self.log_failure(subject or "", peer, "certificate", reason)
            raise AuthenticationError(reason)
        return self.succeeded(user, peer)

    def anonymous(self, peer: Peer) -> Identity:
        """The configured anonymous user; AuthenticationError when there is none."""
        if not self._enabled:
            return Identity(self._anonymous or "anonymous")
        if self._anonymous is None:
            self.log_failure("", peer, "anonymous", "log-in is required")
            raise AuthenticationError("log-in is required: this broker has no anonymous user")
        return self._identity(self._anonymous)

    @property
    def anonymous_allowed(self) -> bool:
        """Return whether :meth:`anonymous` would succeed: sessions offer the mechanism only then."""
        return not self._enabled or self._anonymous is not None

    def scram(self, mechanism: str, peer: Peer | None = None) -> ScramServer:
        """A new exchange of ``mechanism`` (SCRAM-SHA-256). With ``peer``, failures are slowed down by source."""
        if mechanism != SCRAM_MECHANISM:
            raise AuthenticationError(f"the mechanism {mechanism[:40]!r} is not supported")
        return ScramServer(self, ScramExchange(self._lookup), peer)

    def user_names(self) -> dict[str, frozenset[str]]:
        """Every user with its effective roles, for management."""
        return {user: self._roles_of(user) for user in sorted(self._users.verifiers)}

    @property
    def enabled(self) -> bool:
        """Return whether users are proven and permissions asked for (security-enabled)."""
        return self._enabled

    # -- outcome of attempts

    def failed(self, user: str, peer: Peer | None, mechanism: str, reason: str) -> None:
        """Count and log a failed attempt."""
        attempts = self._throttle.failed(peer.address if peer else "", user, self._clock())
        self.log_failure(user, peer, mechanism, reason, attempts)

    def log_failure(
        self, user: str, peer: Peer | None, mechanism: str, reason: str, attempts: int | None = None
    ) -> None:
        """Log one line for a refused log-in, with its source."""
        self.failures += 1
        fields = {
            "user": user,
            "source": peer.address if peer else None,
            "port": peer.port if peer else None,
            "acceptor": peer.acceptor if peer else None,
            "mechanism": mechanism,
            "reason": reason,
            "attempts": attempts,
        }
        event(logger, logging.WARNING, "log-in refused", **fields)
        self._trail.event("login-failed", **fields)

    def succeeded(self, user: str, peer: Peer | None) -> Identity:
        """Count a successful attempt; returns its identity."""
        self.successes += 1
        if peer is not None:
            self._throttle.succeeded(peer.address, user, self._clock())
        return self._identity(user)

    # -- what

    def check(self, identity: Identity, permission: Permission, address: str, queue: str | None = None) -> None:
        """Raise NotPermittedError unless ``identity`` has ``permission`` at ``address`` (or at the queue's FQQN)."""
        granted = self._granted.get((identity.user, address, queue))
        if granted is None:
            granted = self._resolve(identity.user, address, queue)
        if permission not in granted and self._enabled and not identity.administrator:
            place = f"{address}::{queue}" if queue is not None else address
            fields = {"user": identity.user, "permission": permission.name, "address": place}
            event(logger, logging.INFO, "permission refused", **fields)
            self._trail.tell("permission-refused", **fields)
            raise NotPermittedError(
                f"user {identity.user!r} does not have the permission {permission.name!r} at {place!r}"
            )

    def ask(self, user: str, permission: Permission, address: str, queue: str | None = None) -> None:
        """:meth:`check` for the user of that name, who has logged in."""
        self.check(Identity(user), permission, address, queue)

    def permitted(self, identity: Identity, permission: Permission, address: str, queue: str | None = None) -> bool:
        """Return whether :meth:`check` would pass; logs nothing."""
        if not self._enabled or identity.administrator:
            return True
        granted = self._granted.get((identity.user, address, queue))
        if granted is None:
            granted = self._resolve(identity.user, address, queue)
        return permission in granted

    def allowed(self, user: str, permission: Permission, address: str) -> bool:
        """Return whether a user, logged in or not, has a permission at an address."""
        return self.permitted(Identity(user), permission, address)

    def everywhere(self, user: str, permission: Permission) -> bool:
        """Whether a user has a permission at every address there could be. Remembered until something is reloaded."""
        if not self._enabled:
            return True
        found = self._everywhere.get((user, permission))
        if found is None:
            roles = self._roles_of(user)
            settings = self._address_settings
            all_words = self._configuration.wildcard_addresses.any_words
            found = any(setting.match == all_words for setting in settings) and all(
                roles & setting.permissions.get(permission, _NO_ROLES) for setting in settings
            )
            make_room(self._everywhere, max(1, self._configuration.authorization_cache_size))
            self._everywhere[(user, permission)] = found
        return found

    def named(self, user: str, permission: Permission, address: str, queue: str) -> bool:
        """Whether a setting about this very queue (``address::queue``) gives the user the permission."""
        granted = self._at_queue.of(f"{address}::{queue}").get(permission, _NO_ROLES)
        return bool(granted and self._roles_of(user) & granted)

    # -- limits

    def connection_opened(self, identity: Identity, peer: Peer) -> None:
        """Count a connection of this user; LimitError when it has as many as it may."""
        if peer.connection_id in self._connections:
            return
        maximum = self._connection_limit(identity.user)
        if 0 <= maximum <= self._per_user[identity.user]:
            fields = {"user": identity.user, "source": peer.address, "limit": maximum}
            event(logger, logging.WARNING, "connection refused: the user has as many as it may", **fields)
            raise LimitError(f"user {identity.user!r} has {maximum} connections already, the configured maximum")
        self._connections[peer.connection_id] = identity.user
        self._per_user[identity.user] += 1
        if self._on_login is not None:
            self._on_login(peer.connection_id, identity.user)
        self._trail.event("client-login", connection=peer.connection_id, source=peer.address, user=identity.user)

    def connection_closed(self, identity: Identity | None, peer: Peer) -> None:  # noqa: ARG002  (the session's view)
        """Count down; harmless for a connection that was never counted."""
        user = self._connections.pop(peer.connection_id, None)
        if user is not None:
            self._trail.tell("client-logout", connection=peer.connection_id, source=peer.address, user=user)
            if self._on_logout is not None:
                self._on_logout(peer.connection_id)
            self._per_user[user] -= 1
            if self._per_user[user] <= 0:
                del self._per_user[user]

    def queue_limit(self, user: str) -> int:
        """Queues ``user`` may have at a time (resource-limit-settings); -1: no limit."""
        limit = self._limits.get(user) or self._limits.get("#")
        if limit is not None and limit.max_queues >= 0:
            return limit.max_queues
        return self._configuration.limits.max_queues_per_user

    # -- inside

    def _connection_limit(self, user: str) -> int:
        limit = self._limits.get(user) or self._limits.get("#")
        if limit is not None and limit.max_sessions >= 0:
            return limit.max_sessions
        return self._configuration.limits.max_connections_per_user

    def _prepare(self, user: str, password: str) -> tuple[str, str]:
        """SASLprep both; what cannot be prepared cannot be right, but takes the same path and time."""
        if len(user) > MAXIMUM_CREDENTIAL or len(password) > MAXIMUM_CREDENTIAL:
            return user[:MAXIMUM_CREDENTIAL], ""
        try:
            return saslprep(user), saslprep(password)
        except ValueError:
            return user, ""

    def _lookup(self, user: str) -> tuple[Verifier, bool]:
        """The verifier of ``user`` and True, or one that looks as real (same each time) and False."""
        verifier = self._users.verifiers.get(user)
        if verifier is not None:
            return verifier, True
        name = user.encode("utf-8", "surrogatepass")[:MAXIMUM_MESSAGE]
        return Verifier.decoy(self._users.decoy_key, name, self._decoy_iterations), False

    def _cache_key(self, user: str, password: str, verifier: Verifier) -> bytes:
        """Names what was checked without keeping the password; a new verifier makes a new key."""
        text = f"{len(user)}\0{user}\0{base64.b64encode(verifier.stored_key).decode()}\0{password}"
        return hmac.digest(self._hash_key, text.encode("utf-8", "surrogatepass"), "sha256")

    async def _check(self, key: bytes, password: str, verifier: Verifier) -> bool:
        """PBKDF2 in a thread; the same credentials checked at the same time are checked once."""
        running = self._checking.get(key)
        if running is None:
            loop = asyncio.get_running_loop()
            self.checks += 1
            running = loop.run_in_executor(self._executor, verifier.verify, password)
            self._checking[key] = running
            running.add_done_callback(lambda _: self._checking.pop(key, None))
        return await asyncio.shield(running)

    def _remembers(self, key: bytes, now: float) -> bool:
        return self._verified.get(key, 0.0) > now

    def _remember(self, key: bytes) -> None:
        size = self._configuration.authentication_cache_size
        lasts = self._configuration.security_invalidation_interval / 1000
        if size > 0 and lasts > 0:
            self._verified[key] = self._clock() + lasts
            self._verified.move_to_end(key)
            while len(self._verified) > size:
                self._verified.popitem(last=False)

    def _identity(self, user: str) -> Identity:
        return Identity(user, self._roles_of(user))

    def _roles_of(self, user: str) -> frozenset[str]:
        """The roles the files give ``user`` now, with what role-mapping adds."""
        roles = self._users.roles_of(user)
        if user == self._anonymous:
            roles |= frozenset(self._configuration.security.anonymous_roles)
        for role in roles & self._role_mappings.keys():
            roles |= self._role_mappings[role]
        return roles

    def _resolve(self, user: str, address: str, queue: str | None) -> frozenset[str]:
        """The permissions ``user`` has at a place, remembered until something is reloaded."""
        granted_to = self._at_queue.of(f"{address}::{queue}") if queue is not None else {}
        granted_to = granted_to or self._at_address.of(address)
        roles = self._roles_of(user)
        granted = frozenset(name for name, allowed in granted_to.items() if roles & allowed)
        if len(address) + len(queue or "") <= LONG_NAME:
            make_room(self._granted, max(1, self._configuration.authorization_cache_size))
            self._granted[(user, address, queue)] = granted
        return granted
