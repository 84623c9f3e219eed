"""The client's decisions without any I/O: URLs, retry arithmetic, balancing, message encoding."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.client import frames, traffic
from pollux.client.amqp import MAX_NAMED, servers_of
from pollux.client.dialer import MAX_ENDPOINTS, Dialer
from pollux.client.errors import ConnectionLostError, LoginError, SendRefusedError, UrlError
from pollux.client.links import SenderLink
from pollux.client.messages import Message, decode
from pollux.client.policies import PACKAGE, POLICIES, order
from pollux.client.retry import UNLIMITED, RetryPolicy
from pollux.client.traffic_amqp import AmqpPublisher
from pollux.client.url import PARAMETERS, REFUSED, Endpoint, Group, Options, Target, Wire, parse_url
from pollux.wire.amqp.codec import Described


def test_the_url_of_the_reference() -> None:
    target = parse_url("(tcp://myhost:61616,tcp://myhost2:61616)?reconnectAttempts=5")
    assert target.endpoints == (Endpoint("myhost", 61616), Endpoint("myhost2", 61616))
    assert target.options.reconnect_attempts == 5
    assert target.options.retry == RetryPolicy(2000, 1.0, 2000)


def test_every_option_is_read() -> None:
    target = parse_url(
        "tcp://a?reconnectAttempts=-1&initialConnectAttempts=3&retryInterval=100&retryIntervalMultiplier=1.5"
        "&maxRetryInterval=2000&connect-timeout-millis=7&connectionTTL=8&clientFailureCheckPeriod=9&callTimeout=10"
        "&callFailoverTimeout=11&confirmationWindowSize=12&consumerWindowSize=13&useTopologyForLoadBalancing=false"
        f"&connectionLoadBalancingPolicyClassName={PACKAGE}FirstElementConnectionLoadBalancingPolicy"
        "&user=u&password=p%26w&clientID=c&sslEnabled=true&trustStorePath=t&keyStorePath=k&keyPath=y&verifyHost=false"
        "&trustAll=true&protocol=mqtt"
    )
    assert target.options == Options(
        reconnect_attempts=-1,
        initial_connect_attempts=3,
        retry=RetryPolicy(100, 1.5, 2000),
        connect_timeout=7,
        connection_ttl=8,
        client_failure_check_period=9,
        call_timeout=10,
        call_failover_timeout=11,
        confirmation_window_size=12,
        consumer_window_size=13,
        policy="FirstElementConnectionLoadBalancingPolicy",
        use_topology=False,
        user="u",
        password="p&w",
        client_id="c",
        ssl_enabled=True,
        ca_file="t",
        certificate_file="k",
        key_file="y",
        verify_host=False,
        trust_all=True,
        protocol=Wire.MQTT,
    )
    assert "p&w" not in repr(target)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("tcp://a?reconnectAttempt=5", "did you mean 'reconnectAttempts'"),
        ("tcp://a?reconnectAttempts=-2", "out of range"),
        ("tcp://a?reconnectAttempts=x", "not a whole number"),
        ("tcp://a?initialConnectAttempts=0", "never connect"),
        ("tcp://a?retryInterval=300&maxRetryInterval=200", "larger than maxRetryInterval"),
        ("tcp://a?retryIntervalMultiplier=0.5", "out of range"),
        ("tcp://a?blockOnAcknowledge=true", "not supported"),
        ("tcp://a?verifyHost=false", "needs sslEnabled=true"),
        ("tcp://a?sslEnabled=true&keyPath=x", "needs 'keyStorePath'"),
        ("tcp://a?connectionLoadBalancingPolicyClassName=Random", "is not one of"),
        ("tcp://a?protocol=amqq", "did you mean 'amqp'"),
        ("jgroups://x", "write udp://group:port"),
        ("udp://10.0.0.1:9876", "not an IPv4 multicast address"),
        ("udp://[ff02::1]:9876", "not an IPv4 multicast address"),
        ("udp://231.7.7.7", "needs a port"),
        ("(udp://231.7.7.7:1,tcp://a)", "stands alone"),
        ("udp://231.7.7.7:1?refreshTimeout=0", "out of range"),
        ("udp://231.7.7.7:1?localBindAddress=eth0", "not an IPv4 address"),
        ("udp://231.7.7.7:1?localBindPort=7", "nothing is sent"),
        ("udp://231.7.7.7:1?refreshTimeOut=7", "did you mean 'refreshTimeout'"),
        ("tcp://a?refreshTimeout=7", "is for udp://"),
        ("vm://0", "not supported"),
        ("http://a", "unknown scheme"),
        ("tcp://a:0", "port 0"),
        ("(tcp://a?user=x,tcp://b?user=y)", "differs between brokers"),
        ("", "no URI"),
    ],
)
def test_what_a_url_may_not_say(url: str, words: str) -> None:
    with pytest.raises(UrlError) as caught:
        parse_url(url)
    assert words in str(caught.value)


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(UrlError) as caught:
        parse_url("tcp://a?callTimeout=x&retryInterval=y")
    assert "callTimeout" in str(caught.value)
    assert "retryInterval" in str(caught.value)
    assert not PARAMETERS.keys() & REFUSED.keys()


def test_the_url_of_a_group() -> None:
    target = parse_url("udp://231.7.7.7:9876")
    assert (target.endpoints, target.group) == ((), Group("231.7.7.7", 9876, None, 10_000, 10_000))
    target = parse_url(
        "UDP://231.7.7.7:9876?localBindAddress=10.0.0.1;refreshTimeout=5;discoveryInitialWaitTimeout=0;sslEnabled=true"
    )
    assert target.group == Group("231.7.7.7", 9876, "10.0.0.1", 5, 0)
    assert target.options == Options(ssl_enabled=True)


def test_an_interval_above_the_default_maximum_raises_it() -> None:
    assert parse_url("tcp://a?retryInterval=9000").options.retry == RetryPolicy(9000, 1.0, 9000)
    assert parse_url("tcp://a?maxRetryInterval=100").options.retry == RetryPolicy(100, 1.0, 100)


def test_the_pauses_of_the_reference() -> None:
    """An interval of 1000 ms doubled each time: 1000, 2000, 4000."""
    policy = RetryPolicy(1000, 2.0, 60_000)
    assert list(policy.pauses(4)) == [0, 1000, 2000, 4000]
    assert list(RetryPolicy(1000, 2.0, 3000).pauses(5)) == [0, 1000, 2000, 3000, 3000]
    assert list(policy.pauses(0)) == []


@given(
    interval=st.integers(0, 10_000),
    multiplier=st.floats(1, 100),
    maximum=st.integers(0, 100_000),
    attempts=st.integers(0, 200),
)
def test_pauses_grow_up_to_the_maximum(interval: int, multiplier: float, maximum: int, attempts: int) -> None:
    policy = RetryPolicy(interval, multiplier, maximum)
    pauses = list(policy.pauses(attempts))
    assert len(pauses) == attempts
    assert pauses == sorted(pauses)
    assert all(0 <= pause <= maximum for pause in pauses)
    assert pauses[1:] == pytest.approx([policy.pause(failed) for failed in range(1, attempts)])


def test_unlimited_attempts_do_not_end_or_overflow() -> None:
    pauses = RetryPolicy(1, 1000.0, 5).pauses(UNLIMITED)
    assert [next(pauses) for _ in range(100_000)][-1] == 5


@given(count=st.integers(1, 10), seed=st.integers(), name=st.sampled_from(sorted(POLICIES)))
def test_policies_choose_what_exists(count: int, seed: int, name: str) -> None:
    policy = POLICIES[name](random.Random(seed))  # noqa: S311  (reproducible)
    chosen = [policy.select(count) for _ in range(3 * count)]
    assert set(chosen) <= set(range(count))
    if name.startswith("RoundRobin"):
        assert set(chosen[:count]) == set(range(count))
        assert chosen[:count] == chosen[count : 2 * count]
    elif name.startswith(("RandomSticky", "First")):
        assert len(set(chosen)) == 1
    assert sorted(order(chosen[0], count)) == list(range(count))


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Note the pause; take no time."""
        if seconds:
            self.pauses.append(seconds)
        await asyncio.sleep(0)


def dialer(url: str) -> tuple[Dialer, Clock]:
    """A dialer that starts with the first broker, on a clock of the test."""
    clock = Clock()
    target: Target = parse_url(
        url + "&connectionLoadBalancingPolicyClassName=FirstElementConnectionLoadBalancingPolicy"
    )
    return Dialer(target, sleep=clock.sleep), clock


def discard(host: str) -> None:
    raise AssertionError(f"{host} was not needed, and opened all the same")


async def test_one_that_says_nothing_holds_nobody_up() -> None:
    """A machine without power. Passes go on over the others, and it is called once only while it does not answer."""
    found, clock = dialer("(tcp://a,tcp://b)?retryInterval=100&initialConnectAttempts=-1&connect-timeout-millis=60000")
    tried: list[str] = []
    ended: list[str] = []

    async def opener(endpoint: Endpoint) -> str:
        tried.append(endpoint.host)
        if endpoint.host == "a":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("a")
        if len(tried) < 4:
            raise ConnectionRefusedError
        return endpoint.host

    assert await found.first(opener, discard) == "b"
    assert tried == ["a", "b", "b", "b"]
    assert clock.pauses == [0.1, 0.1]
    await asyncio.sleep(0)
    assert ended == ["a"], "it is not waited for any more"


async def test_one_that_is_slow_is_taken_when_nobody_else_lets_us_in() -> None:
    """Passes are not used up while nobody says anything."""
    found, clock = dialer("(tcp://a,tcp://b)?retryInterval=100&initialConnectAttempts=1")
    both = asyncio.Barrier(2)

    async def opener(endpoint: Endpoint) -> str:
        await both.wait()
        if endpoint.host == "b":
            raise ConnectionRefusedError
        await asyncio.sleep(0.01)
        return endpoint.host

    assert await found.first(opener, discard) == "a"
    assert clock.pauses == []


async def test_what_two_brokers_opened_at_the_same_time_is_used_once() -> None:
    found, _ = dialer("(tcp://a,tcp://b)?retryInterval=1")
    both = asyncio.Barrier(2)
    discarded: list[str] = []

    async def opener(endpoint: Endpoint) -> str:
        await both.wait()
        return endpoint.host

    taken = await found.first(opener, discarded.append)
    await asyncio.sleep(0)
    assert sorted([taken, *discarded]) == ["a", "b"]


async def test_a_refused_connection_means_the_next_at_once() -> None:
    found, clock = dialer("(tcp://a,tcp://b,tcp://c)?retryInterval=100")
    tried: list[str] = []

    async def opener(endpoint: Endpoint) -> str:
        tried.append(endpoint.host)
        if endpoint.host != "c":
            raise ConnectionRefusedError
        return endpoint.host

    assert await found.first(opener, discard) == "c"
    assert tried == ["a", "b", "c"]
    assert clock.pauses == []


async def test_a_lost_broker_is_tried_last_and_pauses_lie_between_passes() -> None:
    found, clock = dialer(
        "(tcp://a,tcp://b)?retryInterval=100&retryIntervalMultiplier=2&maxRetryInterval=300&reconnectAttempts=4"
    )
    tried: list[str] = []
    alive = True

    async def opener(endpoint: Endpoint) -> str:
        tried.append(endpoint.host)
        if not alive:
            raise ConnectionRefusedError
        return endpoint.host

    assert await found.first(opener, discard) == "a"
    alive = False
    tried.clear()
    with pytest.raises(ConnectionLostError, match="4 attempt"):
        await found.again(opener, discard)
    assert tried == ["b", "a"] * 4
    assert clock.pauses == [0.1, 0.2, 0.3]


async def test_no_reconnect_attempts_means_none() -> None:
    found, _ = dialer("tcp://a?retryInterval=1")

    async def opener(endpoint: Endpoint) -> str:
        return endpoint.host

    await found.first(opener, discard)
    with pytest.raises(ConnectionLostError, match="reconnectAttempts is 0"):
        await found.again(opener, discard)


async def test_a_refused_login_is_not_repeated() -> None:
    found, clock = dialer("(tcp://a,tcp://b)?initialConnectAttempts=-1")

    async def opener(endpoint: Endpoint) -> str:
        raise LoginError(endpoint.host)

    with pytest.raises(LoginError, match="a"):
        await found.first(opener, discard)
    assert clock.pauses == []


async def test_learnt_brokers_are_tried_too() -> None:
    found, _ = dialer("tcp://a?retryInterval=1&reconnectAttempts=1")
    a, b = Endpoint("a", 61616), Endpoint("b", 1)
    found.learn([b, a, b], a)
    assert found.endpoints == [a, b]
    tried: list[str] = []

    async def opener(endpoint: Endpoint) -> str:
        tried.append(endpoint.host)
        if endpoint.host == "a":
            raise ConnectionRefusedError
        return endpoint.host

    assert await found.first(opener, discard) == "b"
    assert tried == ["a", "b"]
    apart, _ = dialer("tcp://a?useTopologyForLoadBalancing=false")
    apart.learn([b], a)
    assert apart.endpoints == [a]


def test_what_was_learnt_is_what_the_last_broker_says() -> None:
    """The URL's brokers stay first; who was named and is not any more is forgotten, but not who is connected to."""
    found, _ = dialer("(tcp://a,tcp://b)?retryInterval=1")
    a, b, c, d = (Endpoint(name, 61616) for name in "abcd")
    found.learn([c], a)
    assert found.endpoints == [a, b, c]
    found.learn([d, a], c)
    assert found.endpoints == [a, b, c, d], "the one that says so is there itself"
    found.learn([b], d)
    assert found.endpoints == [a, b, d]
    found.learn([], a)
    assert found.endpoints == [a, b, d], "who names nobody does not know better"
    found.learn([Endpoint(f"many{each}", 1) for each in range(1000)], a)
    assert found.endpoints[:2] == [a, b]
    assert len(found.endpoints) == MAX_ENDPOINTS


def listing(*entries: object) -> dict[object, object]:
    return {"failover-server-list": list(entries)}


def test_only_what_can_be_used_is_taken_from_a_brokers_list() -> None:
    good = {"network-host": "b", "port": 1, "scheme": "amqp"}
    strange: tuple[object, ...] = (
        *(None, 7, [], {}, {"port": 1}, {"network-host": "b"} | {"port": 0}, {"network-host": "b", "port": 65536}),
        *({"network-host": host, "port": 1} for host in ("", "b c", "b/?x", "b\n", "x" * 254, b"b", 1)),
        *({"network-host": "b", "port": port} for port in ("1", None, 1.5, True)),
    )
    assert servers_of(listing(*strange, good, good), tls=False) == [Endpoint("b", 1)]
    assert servers_of(listing({"network-host": "::1"}), tls=False) == [Endpoint("::1", 61616)]
    assert servers_of({"failover-server-list": "b:1"}, tls=False) == []
    many = [{"network-host": f"b{each}", "port": 1} for each in range(100_000)]
    assert servers_of(listing(*many), tls=False) == [Endpoint(f"b{each}", 1) for each in range(MAX_NAMED)]


def test_a_brokers_list_does_not_lead_from_tls_to_plain() -> None:
    entries = listing(
        {"network-host": "plain", "scheme": "amqp"},
        {"network-host": "encrypted", "scheme": "amqps"},
        {"network-host": "web", "scheme": "amqpws"},
        {"network-host": "unsaid"},
    )
    assert [one.host for one in servers_of(entries, tls=True)] == ["encrypted", "unsaid"]
    assert [one.host for one in servers_of(entries, tls=False)] == ["plain", "unsaid"]


TEXTS = st.text(max_size=300)


@given(
    body=st.one_of(st.binary(max_size=5000), TEXTS),
    identifier=st.none() | TEXTS,
    properties=st.dictionaries(
        st.text(max_size=20).filter(lambda name: name != "_AMQ_DUPL_ID"),
        st.one_of(TEXTS, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40)),
        max_size=5,
    ),
    duplicate=st.none() | st.text(min_size=1, max_size=50),
    priority=st.integers(0, 9),
    durable=st.booleans(),
)
def test_messages_come_back_as_they_were(
    *,
    body: bytes | str,
    identifier: str | None,
    properties: dict[str, str | bool | int | bytes],
    duplicate: str | None,
    priority: int,
    durable: bool,
) -> None:
    message = Message(body, id=identifier, properties={**properties}, durable=durable, priority=priority, group_id="g")
    found = decode(message.encode(duplicate))
    assert (found.body, found.id, found.group_id) == (body, identifier, "g")
    assert found.duplicate_id == duplicate
    assert {name: value for name, value in found.properties.items() if name != "_AMQ_DUPL_ID"} == properties
    assert (found.priority, found.durable) == (priority, durable)
    assert not found.redelivered


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_refused_message_ends_a_publisher_unless_the_broker_may_refuse(*, allowed: bool) -> None:
    publisher = traffic.publisher(Wire.AMQP, parse_url("tcp://nobody"), "a", lambda *_: None)
    refused: list[SendRefusedError] = []
    if allowed:
        publisher.on_refused = refused.append
    outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    outcome.set_exception(SendRefusedError("amqp:resource-limit-exceeded: the disk is full"))
    assert isinstance(publisher, AmqpPublisher)
    publisher._settled("1", outcome)
    assert (len(refused), publisher.failure is None) == ((1, True) if allowed else (0, False))


class FakeSession:
    """As much of a session as a sender link needs."""

    number = next_delivery = 0
    in_transaction = False

    def __init__(self) -> None:
        self.answers = SimpleNamespace(loop=asyncio.get_running_loop())
        self.outgoing: dict[int, object] = {}

    def transfer(self, *_: object) -> None:
        """Note that a delivery was sent."""


async def test_a_delivery_that_is_settled_without_an_outcome_is_not_confirmed() -> None:
    """A broker that gives up its links settles what it never stored. Breaks when a client takes that for a confirm."""
    link = SenderLink(FakeSession(), 0, "sender", None, resend=True)  # type: ignore[arg-type]
    link.credit, link.attached = 10, True
    stored, unknown, refused = (link.put(b"x") for _ in range(3))
    link.settle(0, Described(frames.ACCEPTED, []))
    link.settle(1, None)
    link.settle(2, Described(frames.REJECTED, []))
    assert stored.done()
    assert isinstance(refused.exception(), SendRefusedError)
    assert not unknown.done()
    link.drop("the broker ended the connection")
    assert [item.future for item in link.waiting] == [unknown], "it is sent again"


async def test_a_session_that_is_there_is_no_subscription() -> None:
    """A first attempt may have broken between the two. Breaks when an MQTT subscriber leaves the second out then."""
    seen: list[int] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            seen.append(data[0] >> 4)
            if seen[-1] == 1:  # CONNECT: the session is present
                writer.write(b"\x20\x03\x01\x00\x00")
            elif seen[-1] == 8:  # SUBSCRIBE
                writer.write(b"\x90\x04" + data[2:4] + b"\x00\x01")
        writer.close()

    async with await asyncio.start_server(broker, "127.0.0.1", 0) as server:
        target = parse_url(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}?protocol=mqtt")
        for times in (1, 2):
            subscriber = traffic.subscriber(Wire.MQTT, target, "a", lambda *_: None)
            await subscriber.prepare()
            await subscriber.start()
            await subscriber.close()
            assert seen.count(8) == times, "once it has subscribed, the session is enough"
