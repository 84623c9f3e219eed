"""Do the other members see the same store? Asked over HTTP, because a directory that is not shared cannot tell.

Each member answers ``GET /health/store`` with who it is and which store it sees: the content of ``node/store.id``, made
at random with the store, and the inode of the node directory, which a copy of the directory does not have. Only
compares; what follows from a difference is decided elsewhere.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.ha.store_layout import STORE_ID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pollux.ha.members import Member

#: How long a member may take to answer, seconds, and how much it may say, bytes.
ANSWER_SECONDS = 1.0
ANSWER_LIMIT = 16384
#: Members asked at the same time.
_AT_A_TIME = 16
HEALTH_STORE = "/health/store"


class Identity(NamedTuple):
    """Which store somebody sees."""

    store: str
    inode: int


class View(NamedTuple):
    """The answer of a member. ``identity`` None: it has not seen a store yet; ``node_id`` is hexadecimal, or empty."""

    id: str
    name: str
    phase: str
    epoch: int
    node_id: str
    identity: Identity | None

    def as_json(self) -> dict[str, Any]:
        """Return the answer's body."""
        return {
            "id": self.id,
            "name": self.name,
            "state": self.phase,
            "epoch": self.epoch,
            "node_id": self.node_id,
            "store": self.identity.store if self.identity else None,
            "inode": self.identity.inode if self.identity else None,
        }


def parse(data: bytes) -> View | None:
    """The view in an answer's body; None when it is no such answer."""
    try:
        value = json.loads(data)
        identity = Identity(str(value["store"]), int(value["inode"])) if value["store"] else None
        return View(
            str(value["id"])[:256],
            str(value["name"])[:256],
            str(value["state"])[:32],
            int(value["epoch"]),
            str(value["node_id"] or "")[:64],
            identity,
        )
    except (ValueError, LookupError, TypeError):
        return None


def read_identity(node: Path) -> Identity | None:
    """The identity of the store whose node directory this is; None when there is none. Raises OSError."""
    try:
        # Listing a directory makes an NFS client ask its server; opening a name may be answered from its cache.
        if STORE_ID not in {path.name for path in node.iterdir()}:
            return None
        text = (node / STORE_ID).read_text("ascii", "replace").strip()
        return Identity(text, node.stat().st_ino)
    except (FileNotFoundError, NotADirectoryError):
        return None


def ask(address: str) -> View | None:
    """Return the answer of the member with this management address; None when there is none."""
    # The answer is compared and never trusted with anything, and the port may have a certificate of its own making: no
    # authorities are loaded, which would take longer than the question.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(f"{address.rstrip('/')}{HEALTH_STORE}")  # noqa: S310  (http or https: see config)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            return parse(answer.read(ANSWER_LIMIT))
    except (OSError, ValueError, http.client.HTTPException):
        return None


def ask_all(addresses: Iterable[str], others: Iterable[Member]) -> list[View]:
    """The answers at these addresses, and of members that are not seen on the store, from where they said they are.

    There another broker may be by now, such as the backup of another node that got a host's slot: what it says is no
    member's answer. Blocks for about ``ANSWER_SECONDS`` at most (for each 16 addresses).
    """
    absent = [(one.management.rstrip("/"), one.id, one.name) for one in others if not one.alive and one.management]
    named = {one.rstrip("/") for one in addresses if one}
    wanted = list(dict.fromkeys((*named, *(address for address, _, _ in absent))))
    if not wanted:
        return []
    with ThreadPoolExecutor(min(len(wanted), _AT_A_TIME), thread_name_prefix="pollux-peers") as pool:
        answers = zip(wanted, pool.map(ask, wanted), strict=True)
        return [
            view
            for address, view in answers
            if view is not None and (address in named or (address, view.id, view.name) in absent)
        ]


def difference(mine: Identity | None, theirs: View, where: str) -> str:
    """Why ``theirs`` and this member do not see the same store (``where``); empty: they do, or nothing can be said."""
    if theirs.identity is None:
        return ""
    remedy = "mount the same directory on both hosts, or correct the store that broker.xml names"
    if mine is None:
        return (
            f"{where}: is not shared with {theirs.name}, whose store is not there: that is another one"
            f" on its host; {remedy}"
        )
    if mine.store != theirs.identity.store:
        return (
            f"{where}: is not shared with {theirs.name}: here is the store {mine.store[:8]}, there"
            f" {theirs.identity.store[:8]}; {remedy}"
        )
    if mine.inode != theirs.identity.inode:
        return (
            f"{where}: is not shared with {theirs.name}: here it is inode {mine.inode}, there"
            f" {theirs.identity.inode}, so one of the two is a copy; {remedy}, and move the copy away"
        )
    return ""
