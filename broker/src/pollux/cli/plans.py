"""Merge plans (docs/pipeline.md): read line by line, never held in memory as a whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT = 1
#: What a message may take of a request, in base64.
LARGEST = 900_000
_OF_A_SEND = (
    *("address", "queue", "encoding", "duplicate_id", "data", "priority", "routing_type", "durable", "timestamp"),
    *("expiration", "properties"),
)


class PlanError(Exception):
    """The plan cannot be applied; the text says why and what to do."""


class Plan:
    """A plan file. `left_out` are messages that cannot be sent this way, in words."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.left_out: list[str] = []
        header = next(self._lines(), None)
        if header is None or "pollux_merge_plan" not in header:
            raise PlanError(f"{path}: is not a merge plan; `pollux-pipeline split_brain` writes them")
        if header["pollux_merge_plan"] != FORMAT:
            raise PlanError(
                f"{path}: plan format {header['pollux_merge_plan']}; this Pollux reads format {FORMAT} only"
            )
        self._node_id = str(header.get("node_id", ""))

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open(encoding="utf-8") as stream:
                for number, line in enumerate(stream, start=1):
                    try:
                        value = json.loads(line)
                    except ValueError:
                        raise PlanError(f"{self._path}:{number}: is not JSON; the plan is damaged or no plan") from None
                    if not isinstance(value, dict):
                        raise PlanError(f"{self._path}:{number}: is not an operation")
                    yield value
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{self._path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def check_node(self, node_id: object) -> None:
        """Raises PlanError when the broker is another node than the one the plan was made for."""
        if node_id is not None and str(node_id).replace("-", "") != self._node_id.replace("-", ""):
            raise PlanError(
                f"{self._path}: made for node {self._node_id}, this broker is node {node_id}; "
                "start the broker with the data that the plan keeps"
            )

    def addresses(self) -> Counter[str]:
        """How many messages the plan sends to each address."""
        return Counter(str(one["address"]) for one in self._lines() if one.get("op") == "send" and one.get("address"))

    def check_limits(self, limits: Mapping[str, int]) -> None:
        """Raises PlanError when an address would forget duplicate ids of the plan before it is applied again."""
        for address, count in self.addresses().items():
            limit = limits.get(address, count)
            if count > limit:
                raise PlanError(
                    f"{self._path}: sends {count} messages to {address!r}, whose id-cache-size is {limit}: applied "
                    f"twice it would send them twice; set id-cache-size to {count} or more in broker.xml and reload"
                )

    def sends(self, most: int, most_bytes: int) -> Iterator[list[dict[str, Any]]]:
        """The messages to send, in requests of bounded size."""
        waiting: list[dict[str, Any]] = []
        size = 0
        for one in self._lines():
            if one.get("op") != "send":
                continue
            length = len(one.get("data") or "")
            if one.get("data") is None:
                self.left_out.append(f"message {one.get('message_id')} of {one.get('queue')}: its bytes are lost")
                continue
            if one.get("file"):
                continue
            if length > LARGEST:
                self.left_out.append(
                    f"message {one.get('message_id')} of {one.get('queue')} has {length * 3 // 4} bytes, more than one "
                    "request takes: send it with a client"
                )
                continue
            if waiting and (len(waiting) >= most or size + length > most_bytes):
                yield waiting
                waiting, size = [], 0
            waiting.append(_message(one))
            size += length
        if waiting:
            yield waiting

    def large(self, directory: Path | None) -> Iterator[tuple[dict[str, Any], Path, int]]:
        """(message, its file, the file's bytes) of each large message; in ``directory`` when it was moved there.

        A file that is not there, or not whole, is left out.
        """
        for one in self._lines():
            if one.get("op") != "send" or not one.get("file") or one.get("data") is None:
                continue
            path = Path(one["file"])
            path = directory / path.name if directory is not None else path
            named = f"message {one.get('message_id')} of {one.get('queue')} is large and its file {path}"
            try:
                size = path.stat().st_size
            except OSError as error:
                self.left_out.append(f"{named} cannot be read: {error.strerror}; name its directory: --large-files")
                continue
            said = _large_size(one)
            if said != size:
                self.left_out.append(f"{named} has {size} bytes, not {said}: it is not whole")
                continue
            yield _message(one), path, size

    def removals(self, most: int) -> Iterator[tuple[str, list[int]]]:
        """(queue, message ids) to remove; lines of one queue follow each other."""
        queue, ids = "", list[int]()
        for one in self._lines():
            if one.get("op") != "remove":
                continue
            if ids and (one["queue"] != queue or len(ids) >= most):
                yield queue, ids
                ids = []
            queue = str(one["queue"])
            ids.append(int(one["message_id"]))
        if ids:
            yield queue, ids


def _message(operation: dict[str, Any]) -> dict[str, Any]:
    """Return what the broker is told of a message. A queue whose name nobody knows is left to the address."""
    message = {name: operation[name] for name in _OF_A_SEND if operation.get(name) is not None}
    if str(message.get("queue", "#")).startswith("#"):
        message.pop("queue", None)
    return message


def _large_size(operation: dict[str, Any]) -> int:
    """Return the size that the journal says the large message's file has, in bytes; -1: nothing that can be read."""
    try:
        return int(json.loads(operation.get("properties") or "")["large"][1])
    except (ValueError, LookupError, TypeError):
        return -1
