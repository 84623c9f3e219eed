"""Properties in values, URIs, and the nearest name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.config.nearest import did_you_mean, nearest
from pollux.config.substitution import substitute
from pollux.config.uris import Uri, UriError, parse_uri, parse_uris

PROPERTIES = {"a": "1", "b.c": "two", "DATA_DIR": "/data", "odd": "${a}"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("${a}", "1"),
        ("x${a}y${b.c}z", "x1ytwoz"),
        ("${none:default}", "default"),
        ("${none:}", ""),
        ("${none:a:b}", "a:b"),
        ("${data.dir}", "/data"),
        ("${data.dir:other}/x", "/data/x"),
        ("${none:${a}}", "1"),
        ("${none:${other:${b.c}}}!", "two!"),
        ("${odd}", "${a}"),
        ("$a {b} $", "$a {b} $"),
        ("${ a }", "1"),
    ],
)
def test_substitution(text: str, result: str) -> None:
    assert substitute(text, PROPERTIES) == result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${none}", "property 'none' is not defined and has no default: give it with -Dnone=..."),
        ("${b.d}", r"property 'b.d' is not defined \(did you mean 'b.c'\?\) and has no default"),
        ("${a", r"'\$\{a' is not closed"),
        ("${}", "a property without a name"),
        ("${:x}", "a property without a name"),
        ("${n:" * 20 + "}" * 20, "properties are nested more than 8 deep"),
        ("${big}${big}", "is longer than 65536 characters"),
    ],
)
def test_substitution_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        substitute(text, PROPERTIES | {"big": "x" * 40000})


@given(st.text("${}:ab", max_size=40))
def test_substitution_is_total(text: str) -> None:
    try:
        substitute(text, PROPERTIES)
    except ValueError as error:
        message = str(error)
        if not message:
            pytest.fail("an error without a text")


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("tcp://localhost:61616", Uri("tcp", "localhost", 61616, {})),
        (" TCP://h:1/ ", Uri("tcp", "h", 1, {})),
        ("tcp://h", Uri("tcp", "h", 61616, {})),
        ("tcp://:5672", Uri("tcp", "localhost", 5672, {})),
        ("tcp://[fe80::1%eth0]:1", Uri("tcp", "fe80::1%eth0", 1, {})),
        ("tcp://1.2.3.4:1?a=b;c=d&e=", Uri("tcp", "1.2.3.4", 1, {"a": "b", "c": "d", "e": ""})),
        ("tcp://h:1?a=x%3By%20z", Uri("tcp", "h", 1, {"a": "x;y z"})),
        ("tcp://h:1?a=b=c", Uri("tcp", "h", 1, {"a": "b=c"})),
        ("vm://0", Uri("vm", "0", 0, {})),
        ("tcp://h:1?a=1;b=2;a=3", Uri("tcp", "h", 1, {"b": "2", "a": "3"}, (("a", "1"),))),
    ],
)
def test_uris(text: str, uri: Uri) -> None:
    assert parse_uri(text) == uri


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a URI of the form"),
        ("localhost:1", "is not a URI of the form"),
        ("tcp://h:1#tcp://i:2", "write parameters after one"),
        ("tcp://h:99999", "port 99999 is out of range"),
        ("tcp://h:x", "is not of the form host:port"),
        ("tcp://::1:5", "an IPv6 address stands in brackets"),
        ("tcp://h:1?a", "URI parameter number 1 is not of the form name=value"),
        ("tcp://h:1?=b", "URI parameter number 1 is not of the form name=value"),
        ("tcp://h!:1", "is not a host name or IP address"),
        ("vm://", "a vm URI needs a server id: vm://0"),
        ("tcp://h:1?" + "a" * 20000, "the URI is longer than"),
    ],
)
def test_wrong_uris(text: str, message: str) -> None:
    with pytest.raises(UriError, match=message):
        parse_uri(text)


def test_several_problems_of_one_uri() -> None:
    with pytest.raises(UriError) as raised:
        parse_uri("ftp://h:99999?a")
    assert len(raised.value.messages) == 3


def test_lists_of_uris() -> None:
    found = parse_uris("(tcp://a:1?x=1,y, tcp://b:2)?x=2;z=3")
    assert found == [Uri("tcp", "a", 1, {"x": "1,y", "z": "3"}), Uri("tcp", "b", 2, {"x": "2", "z": "3"})]
    assert parse_uris("tcp://a:1,tcp://b:2") == [Uri("tcp", "a", 1, {}), Uri("tcp", "b", 2, {})]
    for text, message in [
        ("(tcp://a:1", r"is not of the form \(uri,uri\)"),
        ("()", "no URI is given"),
        ("(tcp://a:1)x", r"is not of the form \(uri,uri\)"),
        ("(" + ",".join(["tcp://a:1"] * 100) + ")", "more than 64 URIs"),
    ]:
        with pytest.raises(UriError, match=message):
            parse_uris(text)


@given(st.text(max_size=60))
def test_uris_are_total(text: str) -> None:
    for candidate in (text, "tcp://" + text, "(" + text, f"(tcp://{text})?{text}"):
        try:
            parse_uris(candidate)
        except UriError as error:
            if not error.messages:
                pytest.fail("an error without a text")


def test_nearest_names() -> None:
    known = ["journal-directory", "keyStorePath", "name"]
    assert nearest("journal_directory", known) == "journal-directory"
    assert nearest("keystorepath", known) == "keyStorePath"
    assert nearest("nmae", known) == "name"
    assert nearest("zzzz", known) is None
    assert did_you_mean("x" * 100_000, known) == ""
