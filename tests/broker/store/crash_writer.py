"""A broker's store in a process that is killed: writes at full speed, prints what is confirmed.

Usage: python -m tests.broker.store.crash_writer DIRECTORY SEED, in the repository's root.

Where the files are is in the environment (FILES, a handle in hexadecimal); on the disk if it is not there.

Lines on standard output, flushed: ``+ ID`` message confirmed,
``- ID`` acknowledgement confirmed, ``s ID`` message sent, ``a ID`` acknowledgement sent, ``t FIRST LAST`` a
transaction's messages confirmed, ``u FIRST LAST`` one sent, ``k KEY VALUE`` binding confirmed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import uvloop

from harness.store import message_of, settings_in
from pollux.store.handles import files_of
from pollux.store.sql.files import SqlFiles
from pollux.store.storage import Storage

FILES = "POLLUX_TEST_FILES"


async def main(directory: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311  (a reproducible test, no secret)
    loop = asyncio.get_running_loop()
    settings = settings_in(directory, journal_file_size=64 << 10, journal_compact_min_files=3)
    files = files_of(bytes.fromhex(os.environ.get(FILES, "")))
    if isinstance(files, SqlFiles):
        files._database.begin_life()
    storage = await Storage.open(
        settings, loop=loop, on_failure=lambda error: sys.exit(f"failed: {error}"), files=files
    )
    recovered = await storage.recover()
    held = [one for priorities in recovered.queues.values() for ids in priorities.values() for one in ids]
    out = sys.stdout.fileno()
    number = 0
    while True:
        intents: list[str] = []
        confirms: list[str] = []
        for _ in range(draw.randint(1, 40)):
            message = message_of(storage, b"x" * draw.randint(0, 600))
            storage.append_message(message, [1])
            held.append(message.id)
            intents.append(f"s {message.id}")
            confirms.append(f"+ {message.id}")
        if draw.random() < 0.3:
            tx = storage.next_id()
            some = [message_of(storage, b"t" * 50) for _ in range(draw.randint(2, 6))]
            for message in some:
                storage.append_message(message, [1], tx=tx)
                held.append(message.id)
            storage.append_commit(tx)
            intents.append(f"u {some[0].id} {some[-1].id}")
            confirms.append(f"t {some[0].id} {some[-1].id}")
        while len(held) > 200 or (held and draw.random() < 0.7):
            message_id = held.pop(draw.randrange(min(len(held), 50)))
            storage.append_acks(1, [message_id])
            intents.append(f"a {message_id}")
            confirms.append(f"- {message_id}")
        if draw.random() < 0.2:
            number += 1
            storage.put("k", "key", str(number).encode())
            confirms.append(f"k {storage.epoch} {number}")
        os.write(out, ("\n".join(intents) + "\n").encode())
        done = loop.create_future()
        storage.when_stable(lambda error, done=done: done.set_result(error))  # type: ignore[misc]
        if (error := await done) is not None:
            raise error
        os.write(out, ("\n".join(confirms) + "\n").encode())


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2])))
