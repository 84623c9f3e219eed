"""The settings of the network check: which hosts, URLs and ping commands are usable, and how a command is run.

A command is split into words once and never seen by a shell; ``%d`` (the time-out in whole seconds) and ``%s`` (the
host) are replaced inside the words. ``%1$d`` and ``%2$s`` mean the same, as Artemis writes them.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.config.report import Report
    from pollux.config.rules import Rule

DEFAULT_PING = "ping -c 1 -w %d %s"
DEFAULT_PING6 = "ping -6 -c 1 -w %d %s"
#: Each is asked at the same time as the others.
MAXIMUM = 16
_PLACE = re.compile(r"%(?:1\$)?d|%(?:2\$)?s")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?", re.ASCII)
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,14}", re.ASCII)


def command_words(command: str) -> list[str]:
    """The words of a ping command. Raises ValueError for one that cannot be run as it is meant."""
    words = shlex.split(command)
    if not words or "%" in words[0]:
        raise ValueError("it does not begin with the name of a program")
    rest = [_PLACE.sub("", word) for word in words]
    if any("%" in word for word in rest):
        raise ValueError("only %d (the time-out in seconds) and %s (the host) are replaced")
    if not any(re.search(r"%(?:2\$)?s", word) for word in words):
        raise ValueError("it has no %s for the host")
    return words


def ping_words(words: list[str], host: str, seconds: int) -> list[str]:
    """The words of a command for one host."""

    def put(place: re.Match[str]) -> str:
        return str(seconds) if place[0].endswith("d") else host

    return [_PLACE.sub(put, word) for word in words]


def is_version_6(host: str) -> bool:
    """Whether the host is given as an address of IPv6."""
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _is_host(host: str) -> bool:
    """An address or a name; nothing that a command could take for an option."""
    return is_version_6(host) or _HOST.fullmatch(host) is not None


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def network_checks_are_usable(configuration: Configuration, report: Report) -> None:
    """Hosts and URLs that can be asked, with commands that can be run."""
    hosts, urls = configuration.network_check_list, configuration.network_check_url_list
    for host in hosts:
        if not _is_host(host):
            line = report.line("network_check_list")
            report.error_at(line, f"network-check-list: {host[:100]!r} is neither an address nor the name of a host")
    for url in urls:
        line = report.line("network_check_url_list")
        if not _is_url(url):
            report.error_at(line, f"network-check-URL-list: {url[:100]!r} is not the URL of a web server")
        elif "@" in urlsplit(url).netloc:
            report.error_at(line, "network-check-URL-list: a URL has a user in it: name a page that needs none")
    for field, found in (("network_check_list", hosts), ("network_check_url_list", urls)):
        if len(found) > MAXIMUM:
            report.error_at(report.line(field), f"the network check asks {len(found)} of them: name {MAXIMUM} at most")
    _commands(configuration, report)
    if not hosts and not urls:
        given = ("network_check_nic", "network_check_ping_command", "network_check_ping6_command")
        if any(getattr(configuration, field) for field in given):
            report.warning_at(report.line(*given), "the network check has neither hosts nor URLs: nothing is checked")


def _commands(configuration: Configuration, report: Report) -> None:
    interface = configuration.network_check_nic
    if interface and not _INTERFACE.fullmatch(interface):
        line = report.line("network_check_nic")
        report.error_at(line, f"network-check-NIC: {interface[:100]!r} is not the name of an interface")
    for field in ("network_check_ping_command", "network_check_ping6_command"):
        command = getattr(configuration, field)
        if not command:
            continue
        name = field.replace("_", "-")
        try:
            command_words(command)
        except ValueError as error:
            report.error_at(report.line(field), f"{name}: {error}; the default is '{DEFAULT_PING}'")
        if interface:
            report.error_at(
                report.line(field),
                f"{name} and network-check-NIC are given: write the interface into the command (-I {interface[:15]})",
            )


NETWORK_RULES: tuple[Rule, ...] = (network_checks_are_usable,)
