"""A broker that says who serves us instead: which words are believed, and that nobody is sent around for ever."""

from __future__ import annotations

import asyncio

import pytest

from pollux.client.calls import MAXIMUM_REDIRECTS, Answer, Calls, HandshakeError, RedirectError, redirection
from pollux.client.url import Endpoint

A, B = Endpoint("a", 1), Endpoint("b", 2)


@pytest.mark.parametrize(
    ("host", "port", "tls", "their_tls", "endpoint"),
    [
        ("b", 2, False, None, B),
        ("b", "2", True, None, B),
        ("b", 2, True, False, B),
        ("fe80::1", 2, False, False, Endpoint("fe80::1", 2)),
    ],
)
def test_who_is_believed(host: object, port: object, tls: bool, their_tls: bool | None, endpoint: Endpoint) -> None:
    found = redirection(host, port, tls=tls, their_tls=their_tls)
    assert isinstance(found, RedirectError)
    assert found.endpoint == endpoint


@pytest.mark.parametrize(
    ("host", "port", "their_tls", "reason"),
    [
        ("", 1, None, "does not say where"),
        (None, 1, None, "does not say where"),
        ("a b", 1, None, "does not say where"),
        ("b", 0, None, "does not say where"),
        ("b", 65536, None, "does not say where"),
        ("b", True, None, "does not say where"),
        ("b", "2x", None, "does not say where"),
        ("b", "", None, "does not say where"),
        ("b", "9" * 5000, None, "does not say where"),
        ("b", 2, True, "use tcps://"),
    ],
)
def test_who_is_not(host: object, port: object, their_tls: bool | None, reason: str) -> None:
    found = redirection(host, port, tls=False, their_tls=their_tls)
    assert not isinstance(found, RedirectError)
    assert reason in str(found)


async def call(way: dict[Endpoint, Exception | str]) -> tuple[Answer[str] | None, dict[Endpoint, str], int]:
    asked = 0

    async def opener(endpoint: Endpoint) -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        found = way[endpoint]
        if isinstance(found, Exception):
            raise found
        return found

    calls: Calls[str] = Calls(opener, 10_000)
    return await calls.call(A, 10), calls.failures, asked


async def test_the_one_who_lets_us_in_is_the_answer() -> None:
    assert await call({A: RedirectError(B), B: "in"}) == (Answer(B, "in"), {}, 2)


async def test_nobody_is_sent_around_for_ever() -> None:
    answer, failures, asked = await call({A: RedirectError(B), B: RedirectError(A)})
    assert (answer, asked) == (None, 2)
    assert "the brokers send us around, from a:1 to b:2 to a:1" in failures[A]
    chain: dict[Endpoint, Exception | str] = {
        Endpoint("a", number): RedirectError(Endpoint("a", number + 1)) for number in range(1, 50)
    }
    answer, failures, asked = await call(chain)
    assert (answer, asked) == (None, MAXIMUM_REDIRECTS + 1)
    assert "send us around" in failures[A]


async def test_a_broker_that_is_named_and_does_not_let_us_in_is_the_reason() -> None:
    _, failures, _ = await call({A: RedirectError(B), B: HandshakeError("it is full")})
    assert failures == {A: "it sends us to b:2: it is full"}
    _, failures, _ = await call({A: RedirectError(B), B: ConnectionRefusedError()})
    assert "it sends us to b:2: refused" in failures[A]
