"""One connection router: decides about each client, and counts what it decided.

The order is the reference's: the key, what is served here anyway, what was decided before, the pool by the policy.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from pollux.cluster.routers.keys import NULL, key_of
from pollux.cluster.routers.policies import POLICIES, Candidate
from pollux.config.clusters import RouterKeyType
from pollux.protocols.redirects import Client, Elsewhere, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pollux.cluster.routers.cache import Cache
    from pollux.cluster.routers.policies import Policy
    from pollux.config.clusters import ConnectionRouter


class Target(Protocol):
    """A broker that is ready to serve clients."""

    #: Its node id, 32 hex digits.
    node: str
    #: It is this broker.
    here: bool

    @property
    def connections(self) -> int | None:
        """Return how many clients it has, as far as is known."""

    def address(self, protocol: str, *, tls: bool) -> tuple[str, int, bool]:
        """Return where it takes clients of a protocol: host, port, and whether with TLS."""

    def sent(self) -> None:
        """Count a client that is sent there."""


class Pool(Protocol):
    """The brokers that a router chooses from."""

    def ready(self) -> Sequence[Target]:
        """Return those that serve, in the pool's order."""

    def enough(self) -> bool:
        """Whether as many are ready as the quorum asks for."""

    async def until_enough(self) -> None:
        """Wait until :meth:`enough`, for quorum-timeout at most."""

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""


class Router:
    """A router as broker.xml describes it. All methods are called in the loop's thread."""

    def __init__(
        self,
        settings: ConnectionRouter,
        pool: Pool | None,
        cache: Cache | None,
        *,
        clock: Callable[[], float],
        source: random.Random | None = None,
    ) -> None:
        """``clock``: seconds; ``source`` is where a policy that takes turns begins."""
        self.settings = settings
        self.pool = pool
        self.cache = cache
        #: Clients by what became of them: local, redirected, refused.
        self.counts: Counter[str] = Counter(local=0, redirected=0, refused=0)
        self._clock = clock
        self._filter = re.compile(settings.key_filter) if settings.key_filter else None
        self._local = re.compile(settings.local_target_filter) if settings.local_target_filter else None
        self._policy: Policy | None = None
        if settings.policy is not None:
            properties = {one.key.upper(): one.value for one in settings.policy.properties}
            self._policy = POLICIES[settings.policy.name](properties, source or random.Random())  # noqa: S311  (no secret)

    # -- pollux.protocols.redirects.Router

    def wait(self, client: Client) -> Awaitable[None] | None:
        """Return the wait for the pool's quorum, where it is not there and this client may need it."""
        if self.pool is None or self._policy is None or self.pool.enough():
            return None
        unknown = client.client_id is None and self.settings.key_type is RouterKeyType.CLIENT_ID
        if not unknown:
            key = self.key(client)
            if self._is_local(key) or self._remembered(key) is not None:
                return None
        return self.pool.until_enough()

    def decide(self, client: Client) -> Elsewhere | Refused | None:
        """Decide about a client, and count it."""
        found = self.choose(self.key(client))
        if isinstance(found, Refused):
            self.counts["refused"] += 1
            return found
        if found is not None:
            found.sent()
            if not found.here:
                self.counts["redirected"] += 1
                return Elsewhere(*found.address(client.protocol, tls=client.peer.tls))
        self.counts["local"] += 1
        return None

    # -- the decision

    def key(self, client: Client) -> str:
        """Return the key of a client, as policy and local-target-filter see it."""
        key = key_of(self.settings.key_type, self._filter, client)
        return key if key == NULL or self._policy is None else self._policy.key(key)

    def choose(self, key: str) -> Target | Refused | None:
        """Return where a key is served; None: here, whatever the pool."""
        if self._is_local(key):
            return None
        name = self.settings.name
        if self._policy is None or self.pool is None:
            return Refused(
                f"connection router {name} serves no client like this one here: use another broker", later=False
            )
        remembered = self._remembered(key)
        if remembered is not None:
            return remembered
        ready = self.pool.ready() if self.pool.enough() else ()
        chosen = self._policy.select([Candidate(one.node, one.connections) for one in ready], key)
        if chosen is None:
            return Refused(f"connection router {name} has no broker that is ready for this client", later=True)
        if self.cache is not None and key != NULL:
            self.cache.put(key, ready[chosen].node, self._clock())
        return ready[chosen]

    def _is_local(self, key: str) -> bool:
        return self._local is not None and self._local.fullmatch(key) is not None

    def _remembered(self, key: str) -> Target | None:
        """Return the broker that this key was sent to before, if it is ready."""
        if self.cache is None or self.pool is None or key == NULL:
            return None
        node = self.cache.get(key, self._clock())
        return next((one for one in self.pool.ready() if one.node == node), None) if node is not None else None

    # -- to be seen

    def target(self, key: str) -> dict[str, Any]:
        """Return where clients of a key are served, the key being what key-filter made of it."""
        found = self.choose(key if key == NULL or self._policy is None else self._policy.key(key))
        if isinstance(found, Refused):
            return {"served": False, "here": False, "nodeId": None, "host": None, "port": None, "reason": found.text}
        host, port = found.address("", tls=False)[:2] if found is not None and not found.here else (None, None)
        node = found.node if found is not None else None
        return {"served": True, "here": host is None, "nodeId": node, "host": host, "port": port, "reason": None}

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        settings = self.settings
        return {
            "name": settings.name,
            "keyType": settings.key_type.value,
            "keyFilter": settings.key_filter,
            "localTargetFilter": settings.local_target_filter,
            "policy": settings.policy.name if settings.policy is not None else None,
            "remembered": len(self.cache) if self.cache is not None else None,
            **self.counts,
            **(self.pool.describe() if self.pool is not None else {"ready": 0, "quorum": 0, "targets": []}),
        }
