"""Whatever a request of the HTTP port says, the answer is below 500 and the log has no traceback."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.conftest import PASSWORD, TIMEOUT
from pollux.management.operations import OPERATIONS

if TYPE_CHECKING:
    from broker.conftest import Instance

LOG_IN = b"Basic " + base64.b64encode(f"ada:{PASSWORD}".encode())
#: Headers that may say that there is more to come than there is.
_FRAMING = {b"content-length", b"transfer-encoding", b"upgrade", b"expect"}
#: What carried out would end or stop the broker, or have it answer for other members.
_SKIPPED = ("/api/v1/activation/", "/api/v1/reload", "/api/v1/users")


def exchange(instance: Instance, data: bytes, *, leave: bool) -> bytes:
    """Send bytes; everything that comes back. ``leave``: say that no more comes, which aiohttp takes for a good-bye."""
    with socket.create_connection(("127.0.0.1", instance.ports["management"]), TIMEOUT) as client:
        client.sendall(data)
        if leave:
            client.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                answer += part
        return answer


def status_of(answer: bytes) -> int:
    """The status of an answer; 0 for none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


def ask(
    instance: Instance,
    method: bytes,
    target: bytes,
    body: bytes = b"",
    headers: list[tuple[bytes, bytes]] | None = None,
) -> int:
    """One request, written as it is given; its status."""
    given_headers = [(b"Host", b"localhost"), (b"Connection", b"close"), (b"Authorization", LOG_IN)]
    changed = {name.lower() for name, _ in headers or ()}
    lines = [line for line in given_headers if line[0].lower() not in changed] + list(headers or ())
    if b"content-length" not in changed and b"transfer-encoding" not in changed:
        lines.append((b"Content-Length", b"%d" % len(body)))
    head = b"".join(b"%b: %b\r\n" % line for line in lines)
    leave = not changed.isdisjoint(_FRAMING)
    return status_of(exchange(instance, b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, target, head, body), leave=leave))


def assert_quiet(instance: Instance, before: int = 0) -> None:
    """Nothing in the log since ``before`` bytes has a traceback."""
    text = instance.log.read_bytes()[before:]
    at = text.find(b"Traceback")
    assert at < 0, text[max(0, at - 300) : at + 3000].decode(errors="replace").replace("\\n", "\n")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"Origin", b"http://[")], 403),
        ([(b"Origin", b"http://[::1")], 403),
        ([(b"Origin", b"\xff")], 403),
        ([(b"Authorization", b"Bearer \xff")], 401),
        ([(b"Authorization", b"Bearer ")], 401),
        ([(b"Authorization", b"Basic \xff")], 400),
        ([(b"Authorization", b"Basic " + base64.b64encode(b"\xff:\xff"))], 400),
        ([(b"Authorization", b"Basic " + base64.b64encode(b"a\0b:c\0d"))], 401),
        ([(b"Authorization", b"\xff\xfe")], 401),
        ([(b"Content-Encoding", b"gzip")], 400),
        ([(b"Content-Encoding", b"deflate")], 400),
    ],
)
def test_a_header_nobody_expects_is_refused_in_one_line(
    shared: Instance, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    before = shared.log.stat().st_size
    assert ask(shared, b"POST", b"/api/v1/addresses", b'{"name": "x"}', headers) == status
    assert_quiet(shared, before)
    lines = shared.log.read_bytes()[before:].splitlines()
    assert len(lines) <= 1, lines


@pytest.mark.parametrize(
    "target",
    [
        b"/api/v1/connections/%C2%B2",
        b"/api/v1/queues?page=%C2%B2",
        b"/api/v1/queues/orders/messages?offset=" + b"0" * 5000,
        b"/api/v1/queues/orders/messages?limit=%D9%A1",
        b"/api/v1/queues/%ff",
        b"/api/v1/queues/%ED%A0%80",
        b"/api/v1/queues/\xff",
        b"/api/v1/addresses?filter=%5B%5D*%ff",
        b"/api/v1/queues/orders/messages?filter=" + b"(" * 5000,
        b"/api/v1/queues/orders/messages?filter=" + b"not%20" * 1200 + b"TRUE",
        b"/api/v1/queues/orders/messages?filter=a+%3D+" + b"9" * 5000,
        b"/api/v1/queues/orders/messages?filter=a+%3D+1e" + b"9" * 5000,
        b"//[",
        b"http://[/api/v1/status",
        b"*",
    ],
)
def test_a_target_nobody_expects_is_refused(shared: Instance, target: bytes) -> None:
    before = shared.log.stat().st_size
    assert ask(shared, b"GET", target) in range(200, 500)
    assert_quiet(shared, before)


def message(**values: Any) -> dict[str, Any]:
    data = base64.b64encode(b"\x00\x00\x00").decode()
    return {"address": "orders", "encoding": "MQTT", "duplicate_id": "YWI=", "data": data, **values}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("addresses", {"name": "\ud800"}),
        ("addresses", {"name": "a::b"}),
        ("addresses", {"name": "x" * 1024, "routingTypes": ["\udfff"]}),
        ("queues", {"name": "\udc80", "routingType": "ANYCAST"}),
        ("queues", {"name": "q", "address": "\udc80"}),
        ("queues", {"name": "q1", "selector": "(" * 5000}),
        ("queues", {"name": "q2", "selector": "\ud800 = 1"}),
        ("queues", {"name": "q3", "maxConsumers": -(1 << 63), "ringSize": -(1 << 63)}),
        ("queues", {"name": "q4", "lastValueKey": "\ud800"}),
        ("queues", {"name": "q5", "groupBuckets": -(1 << 63), "delayBeforeDispatch": -(1 << 63)}),
        ("queues", {"name": "q6", "groupBuckets": (1 << 63) - 1}),
        ("queues/orders/messages/move", {"target": "\ud800", "all": True}),
        ("queues/orders/messages/remove", {"filter": "(" * 5000}),
        ("queues/orders/messages/remove", {"ids": [-(1 << 63)]}),
        ("messages/restore", {"messages": [message(priority=1 << 40)]}),
        ("messages/restore", {"messages": [message(priority=-1)]}),
        ("messages/restore", {"messages": [message(priority=None)]}),
        ("messages/restore", {"messages": [message(timestamp=-(1 << 63))]}),
        ("messages/restore", {"messages": [message(expiration=-1)]}),
        ("messages/restore", {"messages": [message(properties="[]")]}),
        ("messages/restore", {"messages": [message(properties="[" * 100_000)]}),
        ("messages/restore", {"messages": [message(properties='{"deliver_at": 1e400}')]}),
        ("messages/restore", {"messages": [message(properties=json.dumps({"deliver_at": 1 << 80}))]}),
        ("messages/restore", {"messages": [message(properties=json.dumps({"group_sequence": 1 << 80}))]}),
        ("messages/restore", {"messages": [message(properties=json.dumps({"annotations": {"a": 1 << 80}}))]}),
        ("messages/restore", {"messages": [message(properties='{"group": "\\ud800"}')]}),
        ("messages/restore", {"messages": [message(address="\ud800")]}),
        ("messages/restore", {"messages": [message(address="")]}),
        ("messages/restore", {"messages": [message(encoding="AMQP")]}),
        ("messages/restore", {"messages": [message(duplicate_id="YQ==" * 100_000)]}),
        ("messages/restore", {"messages": [message()], "addresses": ["\ud800"]}),
        ("messages/restore-large?head=3", {"a": 1}),
    ],
)
def test_a_body_nobody_expects_is_refused_and_changes_nothing_for_others(
    shared: Instance, path: str, body: dict[str, Any]
) -> None:
    before = shared.log.stat().st_size
    status = ask(shared, b"POST", b"/api/v1/" + path.encode(), json.dumps(body).encode())
    assert status in range(200, 500)
    assert_quiet(shared, before)
    assert ask(shared, b"GET", b"/api/v1/queues/orders/messages?body=true") == 200
    assert ask(shared, b"POST", b"/api/v1/queues/orders/messages/remove", b'{"all": true}') == 200
    assert ask(shared, b"GET", b"/api/v1/queues") == 200
    assert ask(shared, b"GET", b"/api/v1/addresses") == 200
    assert_quiet(shared, before)


def test_a_body_that_ends_early_is_no_error_of_the_broker(shared: Instance) -> None:
    before = shared.log.stat().st_size
    ask(shared, b"POST", b"/api/v1/queues", b'{"name"', [(b"Content-Length", b"500")])
    ask(shared, b"POST", b"/api/v1/queues", b"zz\r\n", [(b"Transfer-Encoding", b"chunked")])
    ask(shared, b"POST", b"/api/v1/messages/restore-large?head=20", b'{"name"', [(b"Content-Length", b"500")])
    assert_quiet(shared, before)


# -- at random

_BYTES = st.binary(max_size=60).map(lambda raw: raw.translate(None, b"\r\n\0"))
_TARGETS = st.sampled_from(
    [
        operation
        for operation in OPERATIONS
        if not operation.path.startswith(_SKIPPED) and operation.method in ("GET", "POST", "DELETE")
    ]
)
_HEADER_NAMES = (
    b"Origin Authorization Host Content-Type Content-Encoding Content-Length Transfer-Encoding Expect Cookie Range"
    b" If-None-Match If-Modified-Since Accept-Encoding Upgrade X-Forwarded-For"
).split()
_ODD = b"http://[,http://[::1]:99999999,Bearer \xff,Basic Og==,gzip,br,chunked,100-continue,websocket,-1,bytes=0-"
_HEADERS = st.lists(
    st.tuples(
        st.sampled_from(_HEADER_NAMES),
        st.one_of(_BYTES, st.sampled_from([*_ODD.split(b","), b"9" * 5000])),
    ),
    max_size=3,
)
_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(),
        st.text(max_size=20),
        st.sampled_from(["ANYCAST", "MULTICAST", "\ud800", "orders", "a > 1", "(", "orders::orders", "YQ=="]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes, bytes, list[tuple[bytes, bytes]]]:
    """A request for one of the API's routes, wrong in some of its parts."""
    operation = draw(_TARGETS)
    path = operation.path.encode()
    for name in (b"{name}", b"{id}"):
        path = path.replace(name, draw(st.sampled_from([b"orders", b"%ff", b"%2F", b"1", b"%C2%B2"]) | _NAMES))
    query = [
        b"%b=%b" % (each.name.encode(), draw(st.sampled_from([b"1", b"true", b"%C2%B2", b"-1", b"%ff"]) | _NAMES))
        for each in operation.query
        if draw(st.booleans())
    ]
    if query:
        path += b"?" + b"&".join(query)
    body = b""
    if operation.body is not None:
        known = [*operation.body.required, *operation.body.optional]
        values = draw(st.dictionaries(st.sampled_from(known) | st.text(max_size=5), _VALUES, max_size=5))
        body = draw(st.just(json.dumps(values).encode()) | st.binary(max_size=40))
    return operation.method.encode(), path, body, draw(_HEADERS)


_NAMES = st.binary(max_size=12).map(lambda raw: b"".join(b"%%%02x" % byte for byte in raw) or b"x")


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(request=requests())
def test_no_request_is_answered_with_a_5xx_or_a_traceback(
    shared: Instance, request: tuple[bytes, bytes, bytes, list[tuple[bytes, bytes]]]
) -> None:
    before = shared.log.stat().st_size
    assert ask(shared, *request) < 500
    assert_quiet(shared, before)


def test_the_broker_still_serves(shared: Instance) -> None:
    """After all of that."""
    connection = http.client.HTTPConnection("127.0.0.1", shared.ports["management"], timeout=TIMEOUT)
    connection.request("GET", "/health/ready")
    assert connection.getresponse().status == 200
    connection.close()
    with shared.stomp() as client:
        client.publish("orders", "still")
