"""Audit trails made without a broker, block by block as docs/audit-format.md says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pollux.formats.audit import Kind, Messages, encode_block, encode_header, encode_messages, file_name

if TYPE_CHECKING:
    from pathlib import Path

SALT = 5


class TrailFile:
    """One file. Blocks are added by the methods; `close` writes it."""

    def __init__(
        self, directory: Path, *, broker: str = "castor", node_id: str = "ab", epoch: int = 3, number: int = 1
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / file_name(broker, "20261121T000000000Z", number)
        self._content = bytearray(encode_header(SALT, {"broker": broker, "node_id": node_id, "epoch": epoch}))
        self._names: dict[str, int] = {}
        self._blocks = 0

    def events(self, *events: tuple[int, str, dict[str, Any]]) -> int:
        """A block of a broker's events: (time, event, fields). Returns where it ends."""
        return self._add(Kind.EVENTS, msgspec.msgpack.encode([list(event) for event in events]))

    def messages(self, messages: Messages, base: int) -> int:
        """A block of message events, with the names it needs before it. Returns where it ends."""
        used = [name for run in messages.runs for name in (run.address, run.queue, run.target) if name is not None]
        new = [name for name in dict.fromkeys(used) if name not in self._names]
        if new:
            self._names |= {name: len(self._names) + index for index, name in enumerate(new)}
            self._add(Kind.NAMES, msgspec.msgpack.encode(new))
        return self._add(Kind.MESSAGES, encode_messages(messages, base, self._names.__getitem__), base)

    def _add(self, kind: Kind, payload: bytes, base: int = 1000) -> int:
        self._content += encode_block(kind, self._blocks, base, payload, SALT)
        self._blocks += 1
        return len(self._content)

    def close(self) -> Path:
        """Write it."""
        self.path.write_bytes(bytes(self._content))
        return self.path
