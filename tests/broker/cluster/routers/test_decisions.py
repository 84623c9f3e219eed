"""A connection router decides: its keys, policies, memory, and the order of its reasons. No socket, no time."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from pollux.cluster.routers.cache import Cache
from pollux.cluster.routers.keys import NULL, key_of
from pollux.cluster.routers.policies import POLICIES, Candidate, FirstElement, fnv
from pollux.cluster.routers.router import Router
from pollux.config.clusters import ConnectionRouter, Property, RouterKeyType, RouterPolicy
from pollux.engine.peer import Peer
from pollux.engine.security import Identity
from pollux.protocols.redirects import Client, Elsewhere, Refused

NODES = ("aa", "bb", "cc")


def client(address: str = "10.0.0.1", *, client_id: str | None = "c", sni: str | None = None, **who: Any) -> Client:
    identity = Identity(who.get("user", "alice"), frozenset(who.get("roles", ())))
    return Client("AMQP", Peer(1, address, 5000, tls=who.get("tls", False), sni=sni), identity, client_id)


@pytest.mark.parametrize(
    ("kind", "pattern", "who", "key"),
    [
        ("CLIENT_ID", None, {"client_id": "pump-7"}, "pump-7"),
        ("CLIENT_ID", None, {"client_id": ""}, NULL),
        ("CLIENT_ID", r"^.{3}", {"client_id": "pump-7"}, "pum"),
        ("CLIENT_ID", r"\d+$", {"client_id": "pump"}, NULL),
        ("CLIENT_ID", r"\d*$", {"client_id": "pump"}, NULL),
        ("SNI_HOST", None, {"sni": "eu.example"}, "eu.example"),
        ("SNI_HOST", None, {}, NULL),
        ("SNI_HOST", r"^[^.]+", {"sni": "eu.example"}, "eu"),
        ("SOURCE_IP", None, {"address": "10.0.0.1"}, "10.0.0.1"),
        ("SOURCE_IP", None, {"address": "::ffff:10.0.0.1"}, "10.0.0.1"),
        ("SOURCE_IP", None, {"address": "fe80::1%eth0"}, "fe80::1"),
        ("SOURCE_IP", r"^\d+", {"address": "10.0.0.1"}, "10"),
        ("USER_NAME", None, {"user": "alice"}, "alice"),
        ("USER_NAME", r"^b", {"user": "alice"}, NULL),
        ("ROLE_NAME", None, {"roles": ["producers", "consumers"]}, "consumers"),
        ("ROLE_NAME", r"^prod", {"roles": ["producers", "consumers"]}, "prod"),
        ("ROLE_NAME", r"^x", {"roles": ["producers", "consumers"]}, NULL),
        ("ROLE_NAME", None, {}, NULL),
    ],
)
def test_keys(kind: str, pattern: str | None, who: dict[str, Any], key: str) -> None:
    compiled = re.compile(pattern) if pattern is not None else None
    assert key_of(RouterKeyType(kind), compiled, client(**who)) == key


def policy(name: str, seed: int = 1, **properties: str) -> FirstElement:
    return POLICIES[name](properties, random.Random(seed))  # noqa: S311  (a test's reproducible choice)


def ready(*counts: int | None) -> list[Candidate]:
    return [Candidate(node, count) for node, count in zip(NODES, counts, strict=False)]


@pytest.mark.parametrize("name", POLICIES)
def test_nobody_is_chosen_of_nobody(name: str) -> None:
    assert policy(name, MODULO="2").select([], "key") is None


def test_the_first_one_and_each_in_turn() -> None:
    assert [policy("FIRST_ELEMENT").select(ready(1, 0, 0), key) for key in "abc"] == [0, 0, 0]
    turns = policy("ROUND_ROBIN")
    chosen = [turns.select(ready(0, 0, 0), "same") for _ in range(6)]
    assert chosen in ([0, 1, 2] * 2, [1, 2, 0] * 2, [2, 0, 1] * 2)
    assert len({policy("ROUND_ROBIN", seed).select(ready(0, 0, 0), "") for seed in range(20)}) == 3, "begins anywhere"


def test_the_least_loaded() -> None:
    assert policy("LEAST_CONNECTIONS").select(ready(5, 2, 9), "") == 1
    assert policy("LEAST_CONNECTIONS").select(ready(5, None, 9), "") == 0, "who was not asked yet counts as the fullest"
    turns = policy("LEAST_CONNECTIONS", CONNECTION_COUNT_THRESHOLD="6")
    assert Counter(turns.select(ready(5, 2, 9), "") for _ in range(10)) == {0: 5, 1: 5}, "below it all are alike"


def test_the_references_hash() -> None:
    """Values made with its Java code; the last one is its smallest number, of which there is no positive one."""
    assert [fnv(text) for text in ("", "a", "test", "\u00fc", "\U0001f600")] == [
        *(0x811C9DC5, 0xE40C292C, 0xAFD071E5),
        ((0x811C9DC5 ^ 0xFC) * 0x01000193) & 0xFFFFFFFF,
        ((((0x811C9DC5 ^ 0xD83D) * 0x01000193 & 0xFFFFFFFF) ^ 0xDE00) * 0x01000193) & 0xFFFFFFFF,
    ]
    modulo = policy("CONSISTENT_HASH_MODULO", MODULO="3")
    assert {modulo.key(str(number)) for number in range(100)} == {"0", "1", "2"}
    assert modulo.select(ready(0), "0") is None


@pytest.mark.parametrize("name", ["CONSISTENT_HASH", "RENDEZVOUS_HASH"])
def test_a_key_stays_with_its_broker_whatever_comes_and_goes_elsewhere(name: str) -> None:
    chooser = policy(name)
    candidates = [Candidate(f"{number:032x}") for number in (7, 1 << 90, 3 << 100, 5 << 64)]
    before = {key: candidates[chooser.select(candidates, key) or 0] for key in map(str, range(200))}
    assert len({*before.values()}) > 1
    lost = candidates[0]
    rest = candidates[1:]
    for key, node in before.items():
        after = rest[chooser.select(rest, key) or 0]
        assert node in (after, lost)
    if name == "RENDEZVOUS_HASH":
        shares = Counter(before.values())
        assert min(shares.values()) > 30, "about even"
        moved = {rest[chooser.select(rest, key) or 0] for key, node in before.items() if node == lost}
        assert moved == {*rest}, "what the lost one had is spread over all others"


def test_the_ring_has_the_key_with_the_last_point_before_it_around() -> None:
    ring = policy("CONSISTENT_HASH")
    points = {node: fnv(node) - (1 << 32 if fnv(node) >> 31 else 0) for node in NODES}
    for key in map(str, range(50)):
        wanted = fnv(key) - (1 << 32 if fnv(key) >> 31 else 0)
        below = [node for node in NODES if points[node] <= wanted]
        expected = max(below, key=points.__getitem__) if below else min(NODES, key=points.__getitem__)
        assert NODES[ring.select(ready(None, None, None), key) or 0] == expected


def test_a_cache_forgets_after_the_last_use_and_has_a_bound() -> None:
    kept: dict[str, str | None] = {}
    cache = Cache(10, keep=kept.__setitem__, before=[("old", "aa")], now=0.0, maximum=3)
    assert cache.get("old", 9) == "aa"
    assert cache.get("old", 18) == "aa", "it was used since"
    assert cache.get("old", 28) is None
    assert kept == {"old": None}
    for number in range(4):
        cache.put(str(number), "bb", 30.0 + number)
    assert len(cache) == 3
    assert cache.entries() == [("1", "bb"), ("2", "bb"), ("3", "bb")]
    assert kept == {"old": None, "0": None, "1": "bb", "2": "bb", "3": "bb"}
    kept.clear()
    cache.put("1", "bb", 35)
    assert kept == {}, "what is known is not written again"
    for_ever = Cache(0, before=[("k", "aa")])
    assert for_ever.get("k", 1e9) == "aa"


class Target:
    def __init__(self, node: str, *, here: bool = False) -> None:
        self.node = node
        self.here = here
        self.granted = 0

    @property
    def connections(self) -> int | None:
        return self.granted

    def address(self, protocol: str, *, tls: bool) -> tuple[str, int, bool]:
        return f"{self.node}-{protocol}", 5672, tls

    def sent(self) -> None:
        self.granted += 1


class Pool:
    def __init__(self, *targets: Target, quorum: int = 1) -> None:
        self.targets = list(targets)
        self.quorum = quorum

    def ready(self) -> list[Target]:
        return self.targets

    def enough(self) -> bool:
        return len(self.targets) >= self.quorum

    async def until_enough(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"ready": len(self.targets), "quorum": self.quorum, "targets": []}


def router(
    pool: Pool | None, name: str | None = "FIRST_ELEMENT", *, cache: Cache | None = None, **settings: Any
) -> Router:
    properties = tuple(Property(key, value) for key, value in settings.pop("properties", {}).items())
    chosen = RouterPolicy(name, properties) if name is not None else None
    settings.setdefault("key_type", RouterKeyType.USER_NAME)
    return Router(ConnectionRouter("r", policy=chosen, **settings), pool, cache, clock=lambda: 0.0)


def test_a_client_is_served_where_the_policy_says() -> None:
    made = router(Pool(Target("aa"), Target("bb")))
    assert made.decide(client(tls=True)) == Elsewhere("aa-AMQP", 5672, True)
    here = router(Pool(Target("me", here=True), Target("bb")))
    assert here.decide(client()) is None
    assert (made.counts["redirected"], here.counts["local"]) == (1, 1)


def test_keys_of_the_local_target_filter_are_served_here_whatever_the_pool() -> None:
    made = router(Pool(Target("aa")), local_target_filter="alice|bob")
    assert made.decide(client(user="alice")) is None
    assert made.decide(client(user="bobby")) == Elsewhere("aa-AMQP", 5672, False), "the whole key has to match"
    made.pool = Pool(quorum=2)
    assert made.decide(client(user="bob")) is None
    assert made.wait(client(user="bob")) is None


def test_parts_by_a_number_made_of_the_key() -> None:
    """Sharding by the policy that chooses nobody: keys of other parts are refused for good, those without are taken."""
    made = router(
        None, "CONSISTENT_HASH_MODULO", properties={"modulo": "2"}, local_target_filter="NULL|0", key_filter="^user"
    )
    answers = {made.decide(client(user=f"user-{number}")) for number in range(1)}
    assert len(answers) == 1
    assert made.decide(client(user="other")) is None, "NULL is no key that a number is made of"
    by_name = router(None, "CONSISTENT_HASH_MODULO", properties={"MODULO": "2"}, local_target_filter="0")
    found = [by_name.decide(client(user=str(number))) for number in range(20)]
    assert {*map(type, found)} == {type(None), Refused}
    assert not any(one.later for one in found if isinstance(one, Refused))


def test_nobody_ready_or_too_few_is_refused_until_later() -> None:
    for pool in (Pool(), Pool(Target("aa"), quorum=2)):
        made = router(pool)
        answer = made.decide(client())
        assert isinstance(answer, Refused)
        assert answer.later
        assert made.counts["refused"] == 1
    made = router(Pool(quorum=1))
    wait = made.wait(client())
    assert wait is not None
    wait.close()  # type: ignore[attr-defined]  # a coroutine that nobody waits for
    assert router(Pool(Target("aa"))).wait(client()) is None


def test_a_client_whose_id_is_not_known_yet_waits_too() -> None:
    made = router(Pool(quorum=1), key_type=RouterKeyType.CLIENT_ID, local_target_filter="c")
    assert made.wait(client(client_id="c")) is None
    wait = made.wait(client(client_id=None))
    assert wait is not None
    wait.close()  # type: ignore[attr-defined]


def test_what_was_decided_is_remembered_while_that_broker_is_ready() -> None:
    first, second = Target("aa"), Target("bb")
    pool, cache = Pool(first, second), Cache(0)
    made = router(pool, cache=cache)
    assert made.decide(client()) == Elsewhere("aa-AMQP", 5672, False)
    pool.targets = [second, first]
    assert made.decide(client()) == Elsewhere("aa-AMQP", 5672, False)
    pool.quorum = 3
    assert made.decide(client()) == Elsewhere("aa-AMQP", 5672, False), "whom it was sent to is there, that is enough"
    assert made.wait(client()) is None
    pool.targets, pool.quorum = [second], 1
    assert made.decide(client()) == Elsewhere("bb-AMQP", 5672, False)
    assert cache.entries() == [("alice", "bb")]
    made.decide(client(user=""))
    assert len(cache) == 1, "those without a key are not remembered"
    assert made.describe()["remembered"] == 1


def test_many_at_once_do_not_all_go_to_the_broker_that_had_the_fewest() -> None:
    targets = Target("aa"), Target("bb")
    made = router(Pool(*targets), "LEAST_CONNECTIONS")
    for _ in range(10):
        made.decide(client())
    assert [one.granted for one in targets] == [5, 5]


def test_where_clients_of_a_key_are_served() -> None:
    made = router(Pool(Target("aa")), local_target_filter="here")
    assert made.target("x") == {
        "served": True,
        "here": False,
        "nodeId": "aa",
        "host": "aa-",
        "port": 5672,
        "reason": None,
    }
    assert made.target("here")["here"]
    assert not router(Pool()).target("x")["served"]
    assert sum(made.counts.values()) == 0


@pytest.mark.parametrize("name", ["CONSISTENT_HASH", "RENDEZVOUS_HASH"])
def test_routers_that_have_each_other_as_targets_send_a_client_on_once(name: str) -> None:
    """RedirectTest, symmetric routers: whoever is asked first, the one that it names serves it."""
    nodes = ("0a", "b7", "f3")
    routers = {
        me: router(Pool(*(Target(node, here=node == me) for node in (me, *(one for one in nodes if one != me)))), name)
        for me in nodes
    }
    for key in map(str, range(100)):
        answers = {me: made.decide(client(user=key)) for me, made in routers.items()}
        (served,) = (me for me, answer in answers.items() if answer is None)
        assert {answer for answer in answers.values() if answer is not None} == {
            Elsewhere(f"{served}-AMQP", 5672, False)
        }


@pytest.mark.parametrize("brokers", [2, 3])
def test_each_key_is_served_by_one_of_the_brokers_that_share_them_by_number(brokers: int) -> None:
    """AutoClientIDShardClusterTest: a durable subscriber that tries them all ends at the same one every time."""
    routers = [
        router(
            None,
            "CONSISTENT_HASH_MODULO",
            properties={"MODULO": str(brokers)},
            local_target_filter=str(number) if number else f"{NULL}|0",
            key_type=RouterKeyType.CLIENT_ID,
        )
        for number in range(brokers)
    ]
    shares = Counter(
        tuple(made.decide(client(client_id=f"subscriber-{number}")) is None for made in routers)
        for number in range(300)
    )
    assert all(sum(one) == 1 for one in shares)
    assert len(shares) == brokers
    assert min(shares.values()) > 300 // brokers // 2
    assert [made.decide(client(client_id=None)) is None for made in routers] == [True] + [False] * (brokers - 1)
