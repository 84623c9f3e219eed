"""The routers of a broker as broker.xml has them: deployed, changed and removed by a reload, and what they remember.

The cases of the reference's ConnectionRouterManagerTest, LocalCacheTest and ElasticQueueTest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.cluster.routers.test_decisions import client
from broker.engine.conftest import Office
from pollux.cluster.link import CoreHub
from pollux.cluster.routers.service import KIND, Routers
from pollux.config.clusters import ConnectionRouter, RouterCache, RouterKeyType, RouterPolicy, RouterPool
from pollux.protocols.redirects import Refused
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio
NODE = b"N" * 16
HUB = CoreHub(ClusterKey("nodes", "castor and pollux"), name="me", node_id=NODE, timeout=60.0)
#: This broker alone is a target, and it is asked nothing.
HERE = RouterPool(local_target_enabled=True, check_period=60_000)
PLAIN = ConnectionRouter("r", RouterKeyType.USER_NAME, local_target_filter="alice")
REMEMBERS = ConnectionRouter(
    "kept", RouterKeyType.USER_NAME, policy=RouterPolicy("FIRST_ELEMENT"), pool=HERE, cache=RouterCache(persisted=True)
)


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    made = Office(tmp_path)
    await made.open()
    yield made
    await made.close()


async def started(office: Office, *routers: ConnectionRouter) -> Routers:
    configuration = replace(office.configuration, connection_routers=routers)
    made = Routers(configuration, HUB, office.post, node=NODE, clients=lambda: 0)
    await made.start()
    return made


async def reload(office: Office, routers: Routers, *wanted: ConnectionRouter) -> None:
    await routers.reload(replace(office.configuration, connection_routers=wanted))


def served(routers: Routers, name: str, user: str) -> bool:
    router = routers.get(name)
    assert router is not None
    return router.decide(client(user=user)) is None


async def test_a_reload_adds_changes_and_removes_routers(office: Office) -> None:
    """ConnectionRouterManagerTest: deploy, update, remove. One that did not change is the same one."""
    routers = await started(office, PLAIN)
    before = routers.get("r")
    assert [served(routers, "r", user) for user in ("alice", "bob")] == [True, False]
    await reload(office, routers, replace(PLAIN, line=7), replace(PLAIN, name="new"))
    assert routers.get("r") is before, "where it stands in the file is no change"
    assert routers.get("new") is not None
    await reload(office, routers, replace(PLAIN, local_target_filter="bob"))
    assert routers.get("r") is not before
    assert [served(routers, "r", user) for user in ("alice", "bob")] == [False, True]
    await reload(office, routers)
    assert routers.get("r") is None
    assert routers.get(None) is None
    await routers.stop()


async def test_clients_are_steered_by_a_filter_that_is_changed_meanwhile(office: Office) -> None:
    """ElasticQueueTest: producers are sent away from a full head of a chain, consumers still come to drain it."""
    head = ConnectionRouter("r", RouterKeyType.ROLE_NAME, local_target_filter="producers|consumers")
    routers = await started(office, head)

    def answers() -> list[object]:
        router = routers.get("r")
        assert router is not None
        return [router.decide(client(roles=[role])) for role in ("producers", "consumers")]

    assert answers() == [None, None]
    await reload(office, routers, replace(head, local_target_filter="consumers"))
    sent_away, here = answers()
    assert isinstance(sent_away, Refused)
    assert here is None
    await routers.stop()


@pytest.mark.parametrize("persisted", [True, False])
async def test_what_was_decided_is_known_after_a_restart_if_it_is_to_be(office: Office, persisted: bool) -> None:
    """LocalCacheTest: persisted and not."""
    settings = replace(REMEMBERS, cache=RouterCache(persisted=persisted))
    routers = await started(office, settings)
    assert served(routers, "kept", "alice")
    await routers.stop()
    await office.reopen()
    routers = await started(office, settings)
    router = routers.get("kept")
    assert router is not None
    assert router.cache is not None
    assert router.cache.entries() == ([("alice", NODE.hex())] if persisted else [])
    await routers.stop()


async def test_a_changed_router_keeps_what_it_remembers_and_a_removed_one_does_not(office: Office) -> None:
    routers = await started(office, REMEMBERS)
    served(routers, "kept", "alice")
    await reload(office, routers, replace(REMEMBERS, policy=RouterPolicy("ROUND_ROBIN")))
    router = routers.get("kept")
    assert router is not None
    assert router.cache is not None
    assert router.cache.entries() == [("alice", NODE.hex())]
    await reload(office, routers)
    await routers.stop()
    await office.reopen()
    assert not [key for kind, key in office.post.recovered if kind == KIND], "nothing is left in the bindings"
