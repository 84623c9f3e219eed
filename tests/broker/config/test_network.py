"""The network check's settings: what is refused before anybody is asked, and how a command is run."""

from __future__ import annotations

import pytest

from pollux.config.rules_network import DEFAULT_PING, DEFAULT_PING6, command_words, ping_words
from pollux.ha.replication.network_check import settings_of

from .documents import configuration, document, messages


@pytest.mark.parametrize(
    ("core", "message"),
    [
        ("<network-check-list>10.0.0.1,-f</network-check-list>", "network-check-list: '-f' is neither an address"),
        ("<network-check-list>a b</network-check-list>", "network-check-list: 'a b' is neither an address"),
        ("<network-check-list>$(id)</network-check-list>", "network-check-list: '$(id)' is neither an address"),
        ("<network-check-URL-list>ftp://a</network-check-URL-list>", "'ftp://a' is not the URL of a web server"),
        ("<network-check-URL-list>http://</network-check-URL-list>", "'http://' is not the URL of a web server"),
        ("<network-check-URL-list>http://u:secret@a/</network-check-URL-list>", "a URL has a user in it"),
        (f"<network-check-list>{','.join(f'h{n}' for n in range(17))}</network-check-list>", "asks 17 of them"),
        ("<network-check-ping-command>ping</network-check-ping-command>", "it has no %s for the host; the default is"),
        ("<network-check-ping6-command>%s %d</network-check-ping6-command>", "ping6-command: it does not begin"),
        ("<network-check-ping-command>ping %x %s</network-check-ping-command>", "only %d (the time-out in seconds)"),
        ("<network-check-ping-command>ping '%s</network-check-ping-command>", "network-check-ping-command: No closing"),
        ("<network-check-NIC>-I</network-check-NIC>", "'-I' is not the name of an interface"),
        (
            "<network-check-NIC>e1</network-check-NIC><network-check-ping-command>ping %s</network-check-ping-command>",
            "write the interface into the command (-I e1)",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(core: str, message: str) -> None:
    found = messages(document(core))
    assert any(message in problem for problem in found), found
    assert not any("secret" in problem for problem in found)


def test_words_are_made_once_and_nothing_in_a_host_makes_more() -> None:
    words = command_words("ping -c 1 -t %1$d '%2$s'")
    assert ping_words(words, "10.0.0.1", 3) == ["ping", "-c", "1", "-t", "3", "10.0.0.1"]
    assert ping_words(words, "a b;c", 3)[-1] == "a b;c"
    assert ping_words(command_words(DEFAULT_PING), "%d", 3) == ["ping", "-c", "1", "-w", "3", "%d"]


def test_what_is_asked() -> None:
    assert settings_of(configuration("")) is None
    found = settings_of(
        configuration(
            "<network-check-list>10.0.0.1, fd00::1</network-check-list>"
            "<network-check-timeout>2500</network-check-timeout>"
            "<network-check-URL-list>http://a/,https://b:1/x</network-check-URL-list>"
            "<network-check-NIC>eth1</network-check-NIC>"
        )
    )
    assert found is not None
    assert found.hosts == ("10.0.0.1", "fd00::1")
    assert found.urls == ("http://a/", "https://b:1/x")
    assert (found.period, found.timeout) == (10.0, 2.5)
    assert found.ping == ("ping", "-I", "eth1", *DEFAULT_PING.split()[1:])
    assert found.ping6 == ("ping", "-I", "eth1", *DEFAULT_PING6.split()[1:])
