"""Checkpoints on their way between files and the state of a journal; their bytes are those of formats."""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any

from pollux.formats.checkpoint import HEADER, Checkpoint, decode_checkpoint, decode_node, encode_checkpoint
from pollux.formats.names import CheckpointKey, checkpoint_name
from pollux.store.files import DISK, FileReader, write_all
from pollux.store.index import Index
from pollux.store.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pollux.store.port import Files
    from pollux.store.state import State

#: Bytes of one write.
_WRITE_BYTES = 8 << 20


def index_of(checkpoint: Checkpoint, directory: Path) -> Index:
    """Return where its messages are, for cold reads. The memory of the arrays stays on disk."""
    paths = [directory / file.name for file in checkpoint.files]
    salts = [file.salt for file in checkpoint.files]
    return Index(paths, salts, checkpoint.ids, checkpoint.locations, checkpoint.lengths)


def load_checkpoint(checkpoint: Checkpoint, state: State, *, bodies: bool) -> None:
    """Fill an empty state; with ``bodies`` the message index too (the checkpointer folds it further)."""
    for queue_id, priority, start, count in checkpoint.queues:
        ids = array("Q")
        ids.frombytes(checkpoint.queue_ids[start : start + count].cast("B"))
        state.added[queue_id << 4 | priority] = ids
    state.references = None
    if bodies:
        state.ids.frombytes(checkpoint.ids.cast("B"))
        state.locations.frombytes(checkpoint.locations.cast("B"))
        state.lengths.frombytes(checkpoint.lengths.cast("B"))
    values = checkpoint.state
    state.delivery_counts.update({(queue, message): count for queue, message, count in values["delivery_counts"]})
    state.schedules.update({(queue, message): at for queue, message, at in values["schedules"]})
    for address, duplicates in values["duplicates"].items():
        state.duplicates[address] = dict.fromkeys(duplicates)
    for tx, messages, acknowledgements, references, duplicates, page_acks, pages, xid, *links in values["pending"]:
        state.pending[tx] = Pending(
            [(one[0], one[1], tuple(one[2]), *one[3:]) for one in messages],
            [(queue_id, ids) for queue_id, ids in acknowledgements],
            [(message_id, priority, tuple(queue_ids)) for message_id, priority, queue_ids in references],
            [(address, value) for address, value in duplicates],
            [(store, page, queue_id, ids) for store, page, queue_id, ids in page_acks],
            [(store, page) for store, page in pages],
            xid,
            [(key, life, number) for key, life, number in links[0]] if links else [],
        )
    for key, lives in values.get("links", {}).items():
        state.links[key] = dict(lives)
    state.large.update(dict(values["large"]))
    for store, page, queues in values["page_acks"]:
        state.pages.acks[store, page] = {queue_id: set(ids) for queue_id, ids in queues}
    for store, done in values["pages_done"]:
        state.pages.done[store] = set(done)
    state.pages.marks.update(values.get("page_marks", {}))
    state.queue_records.update(values.get("queue_records", {}))
    for store, address, pages in values.get("page_files", ()):
        state.pages.files[store] = set(pages)
        state.pages.addresses[store] = address
    state.large_sizes.update(dict(values.get("large_sizes", ())))
    state.large_sums.update(dict(values.get("large_sums", ())))
    state.reach = values.get("reach", 0)
    state.pages.ends.update({(store, page): end for store, page, end in values.get("page_ends", ())})
    for store, page, committed in values["page_tx"]:
        state.pages.tx[store, page] = set(committed)


def encode_state(state: State) -> dict[str, Any]:
    """The STATE section of a finished state."""
    return {
        "delivery_counts": [[queue, message, count] for (queue, message), count in state.delivery_counts.items()],
        "schedules": [[queue, message, at] for (queue, message), at in state.schedules.items()],
        "duplicates": {address: list(kept) for address, kept in state.duplicates.items()},
        "pending": [
            [
                tx,
                one.messages,
                one.acknowledgements,
                one.references,
                one.duplicates,
                one.page_acks,
                one.pages,
                one.xid,
                *([one.links] if one.links else ()),
            ]
            for tx, one in state.pending.items()
        ],
        "large": list(state.large.items()),
        "page_acks": [
            [*key, [[queue_id, list(ids)] for queue_id, ids in queues.items()]]
            for key, queues in state.pages.acks.items()
        ],
        "page_marks": state.pages.marks,
        "page_tx": [[*key, list(committed)] for key, committed in state.pages.tx.items()],
        "page_files": [
            [store, address, list(state.pages.files.get(store, ()))] for store, address in state.pages.addresses.items()
        ],
        "large_sizes": list(state.large_sizes.items()),
        "large_sums": list(state.large_sums.items()),
        "reach": state.reach,
        "links": {key: list(lives.items()) for key, lives in state.links.items()},
        "page_ends": [[*key, end] for key, end in state.pages.ends.items()],
        "pages_done": [[store, list(done)] for store, done in state.pages.done.items()],
        "queue_records": state.queue_records,
    }


def write_checkpoint(
    files: Files,
    directory: Path,
    node_id: bytes,
    key: CheckpointKey,
    sections: Sequence[tuple[int, bytes | memoryview]],
) -> Path:
    """Write, sync and install a checkpoint. Raises OSError; what is left then is only a ``.tmp`` file."""
    path = directory / checkpoint_name(key)
    unfinished = path.with_suffix(".tmp")
    fd = files.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        for offset, data in encode_checkpoint(node_id, key, sections):
            view = memoryview(data)
            for start in range(0, len(view), _WRITE_BYTES):
                write_all(files, fd, view[start : start + _WRITE_BYTES], offset + start, sync=False)
        files.fsync(fd)
    finally:
        files.close(fd)
    files.rename(unfinished, path)
    files.sync_directory(directory)
    return path


def node_of(path: Path, files: Files = DISK) -> bytes | None:
    """The node in a checkpoint's header; None when that is not a sound one. Raises OSError."""
    with FileReader(path, files) as stream:
        return decode_node(stream.read(HEADER.size))


def read_checkpoint(path: Path, node_id: bytes | None, files: Files = DISK) -> Checkpoint:
    """Map a checkpoint and verify all of it. Raises FormatError."""
    return decode_checkpoint(files.view(path), path, node_id)
