"""SCRAM-SHA-256's server side against RFC 7677's example, an independent client, and hostile input."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.config.verifiers import Verifier
from pollux.engine.scram import ScramError, ScramExchange
from pollux.errors import AuthenticationError

ClientFinal = Callable[..., tuple[str, str]]
PENCIL = Verifier.create("pencil", iterations=4096, salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))


def exchange(nonce: str | None = None, *, known: bool = True) -> ScramExchange:
    return ScramExchange(lambda _user: (PENCIL, known), nonce=nonce)


def test_the_example_of_rfc_7677() -> None:
    scram = exchange("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = scram.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = scram.final(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert scram.user == "user"


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=us=2Cer,"])
def test_any_client_of_the_right_password(header: str, client_final: ClientFinal) -> None:
    scram = exchange()
    first = scram.first(f"{header}n=us=2Cer,r=abc".encode()).decode()
    message, expected = client_final("pencil", "n=us=2Cer,r=abc", first, header)
    assert scram.final(message.encode()).decode() == expected
    assert scram.user == "us,er"


def test_a_wrong_password(client_final: ClientFinal) -> None:
    scram = exchange()
    first = scram.first(b"n,,n=user,r=abc").decode()
    message, _ = client_final("pen", "n=user,r=abc", first)
    with pytest.raises(AuthenticationError):
        scram.final(message.encode())


def test_an_unknown_user_fails_even_with_a_matching_proof(client_final: ClientFinal) -> None:
    scram = exchange(known=False)
    first = scram.first(b"n,,n=user,r=abc").decode()
    message, _ = client_final("pencil", "n=user,r=abc", first)
    with pytest.raises(AuthenticationError):
        scram.final(message.encode())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,other,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=us\0er,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=" + b"u" * 5000 + b",r=abc",
    ],
)
def test_bad_first_messages(message: bytes) -> None:
    with pytest.raises(ScramError):
        exchange().first(message)


def test_the_nonce_must_be_repeated_and_steps_kept(client_final: ClientFinal) -> None:
    scram = exchange()
    with pytest.raises(ScramError, match="order"):
        scram.final(b"c=biws,r=abc,p=AAAA")
    with pytest.raises(ScramError, match="order"):
        scram.first(b"n,,n=user,r=abc")  # a failed exchange is over
    scram = exchange("server")
    first = scram.first(b"n,,n=user,r=abc").decode()
    message, _ = client_final("pencil", "n=user,r=abc", first)
    with pytest.raises(ScramError, match="nonce"):
        scram.final(message.replace("r=abcserver", "r=abcSERVER").encode())


def test_the_binding_must_repeat_the_header(client_final: ClientFinal) -> None:
    scram = exchange()
    first = scram.first(b"y,,n=user,r=abc").decode()
    message, _ = client_final("pencil", "n=user,r=abc", first, "n,,")
    with pytest.raises(ScramError, match="binding"):
        scram.final(message.encode())


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_garbage_never_authenticates(first: bytes, final: bytes) -> None:
    scram = exchange()

    def attempt() -> None:
        scram.first(b"n,," + first)
        scram.final(final)

    with pytest.raises(AuthenticationError):
        attempt()
