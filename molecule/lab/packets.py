"""The rules of partitions (nftables) and delays (tc netem), as text. Pure."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Literal

from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Which packets of a host are dropped: those it gets, those it sends, or both.
Direction = Literal["both", "in", "out"]
#: One table holds everything a partition adds, so that undoing it is one command.
TABLE = "pollux_lab_partition"
_HOOKS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "in": (("incoming", "input", "saddr", "iif"),),
    "out": (("outgoing", "output", "daddr", "oif"),),
}


def partition(peers: Sequence[str], direction: Direction) -> str:
    """The ruleset (for `nft -f -`) that drops packets from and to `peers` (everybody but the host itself if none)."""
    if direction not in ("both", "in", "out"):
        raise LabError(f"a partition's direction is both, in or out, not {direction!r}")
    four: list[str] = []
    six: list[str] = []
    for peer in peers:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError as error:
            raise LabError(f"a partition's peers are addresses; {peer!r} is not one") from error
        (four if address.version == 4 else six).append(str(address))
    lines = [f"table inet {TABLE} {{"]
    for chain, hook, side, interface in (_HOOKS["in"] + _HOOKS["out"]) if direction == "both" else _HOOKS[direction]:
        lines += [f"  chain {chain} {{", f"    type filter hook {hook} priority -150; policy accept;"]
        lines += [
            f"    {family} {side} {{ {', '.join(some)} }} drop" for family, some in (("ip", four), ("ip6", six)) if some
        ]
        if not peers:
            lines.append(f'    {interface} != "lo" drop')
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def apart(peers: Sequence[str], port: int) -> str:
    """The ruleset that keeps programs of this host and of `peers` (IPv4) from each other's TCP port; the rest passes.

    Who tries hears at once that there is no way, which is not the answer of a machine where nothing listens.
    """
    them = f"{{ {', '.join(str(ipaddress.IPv4Address(peer)) for peer in peers)} }}"
    return "\n".join(
        [
            f"table inet {TABLE} {{",
            "  chain incoming {",
            "    type filter hook input priority -150; policy accept;",
            f"    ip saddr {them} tcp dport {port} drop",
            "  }",
            "  chain outgoing {",
            "    type filter hook output priority -150; policy accept;",
            f"    ip daddr {them} tcp dport {port} reject with icmp type admin-prohibited",
            "  }",
            "}",
            "",
        ]
    )


def netem(delay_ms: float, jitter_ms: float, loss_percent: float) -> list[str]:
    """The words after `tc qdisc replace dev X root`."""
    if min(delay_ms, jitter_ms, loss_percent) < 0 or loss_percent > 100:
        raise LabError(f"delay {delay_ms}, jitter {jitter_ms} (ms) and loss {loss_percent} (percent) make no sense")
    words = ["netem"]
    if delay_ms or jitter_ms:
        words += ["delay", f"{delay_ms:g}ms", f"{jitter_ms:g}ms"]
    if loss_percent:
        words += ["loss", f"{loss_percent:g}%"]
    if len(words) == 1:
        raise LabError("neither delay nor loss was asked for")
    return words
