"""Composes one audit file after the other: headers, numbered blocks, the table of names. Bytes go to the writer."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from pollux.formats.audit import Kind, encode_block, encode_header, encode_messages

if TYPE_CHECKING:
    from pollux.audit.writer import Writer
    from pollux.formats.audit import Messages


class TrailFile:
    """The file that is being written. A life is a node id and an epoch; ``about`` is in every header."""

    def __init__(self, writer: Writer, about: dict[str, Any], life: tuple[str, int]) -> None:
        self.writer = writer
        #: Bytes so far.
        self.size = 0
        self._about = about
        self._names: dict[str, int] = {}
        self._new_names: list[str] = []
        self._number = 0
        self._salt = 0
        self.begin(life)

    def begin(self, life: tuple[str, int]) -> None:
        """Make the next file the one that is written to."""
        self._names = {}
        self._new_names = []
        self._number = 0
        self._salt = secrets.randbits(32)
        node_id, epoch = life
        content = {**self._about, "node_id": node_id, "epoch": epoch, "created": time.time_ns() // 1_000_000}
        self.size = self.writer.begin(lambda number: encode_header(self._salt, {**content, "file": number}))

    def add_events(self, events: list[tuple[int, str, dict[str, Any]]]) -> None:
        """Write lifecycle events (at least one), as (time, name, fields)."""
        self._block(Kind.EVENTS, events[0][0], msgspec.msgpack.encode(events, enc_hook=str))

    def add_messages(self, messages: Messages) -> None:
        """Write message events (at least one run), after the names they use for the first time."""
        base = messages.runs[0].time
        payload = encode_messages(messages, base, self._name)
        if self._new_names:
            self._block(Kind.NAMES, base, msgspec.msgpack.encode(self._new_names))
            self._new_names = []
        self._block(Kind.MESSAGES, base, payload)

    def _name(self, text: str) -> int:
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names)
            self._new_names.append(text)
        return number

    def _block(self, kind: Kind, base: int, payload: bytes) -> None:
        block = encode_block(kind, self._number, base, payload, self._salt)
        self._number += 1
        self.size += len(block)
        self.writer.write(block)
