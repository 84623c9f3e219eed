"""Reading a file takes memory for what was written to it, not for its length; options that do nothing are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from harness.journals import JournalFile
from pollux_pipeline.errors import InputError
from pollux_pipeline.schemas import AUDIT, journal_schema
from pollux_pipeline.sources.audit import AuditSource
from pollux_pipeline.sources.journal import JournalSource
from pollux_pipeline.sources.rows import contents
from pollux_pipeline.sources.scan import PADDING

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
READ = """
import json, resource, sys
from pollux_pipeline.schemas import journal_schema
from pollux_pipeline.sources.journal import JournalReader

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

reader = JournalReader([sys.argv[1]], journal_schema(["record_type", "message_id", "damage"]))
(partition,) = reader.partitions()
before = peak()
rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
print(json.dumps([peak() - before, [row["record_type"] for row in rows], [row["damage"] for row in rows]]))
"""


def test_a_segment_of_zeros_takes_no_memory(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.message("a", [7])
    journal.close()
    with journal.path.open("r+b") as stream:
        stream.truncate(768 * MIB)
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, kinds, damage = json.loads(done.stdout)
    assert kinds == ["BATCH", "START", "BATCH", "MESSAGE"]
    assert damage == [None] * 4
    assert grown < 100, f"{grown} MiB for a segment of a few records"


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, 2 * MIB + 17])
def test_what_is_read_is_what_the_file_holds(tmp_path: Path, size: int) -> None:
    blocks = bytes(MIB) + b"\0\1" * MIB
    (tmp_path / "file").write_bytes(blocks[:size])
    data, length = contents(tmp_path / "file")
    assert length == size
    assert data[:] == blocks[:size] + bytes(PADDING)


def test_a_misspelt_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(InputError, match="option 'colums' is not known: did you mean columns"):
        JournalSource({"path": "x", "colums": "file"}).reader(journal_schema())
    with pytest.raises(InputError, match="option 'maxfilepertrigger' is not known: did you mean maxFilesPerTrigger"):
        JournalSource({"path": "x", "maxfilepertrigger": "2"}).streamReader(journal_schema())
    with pytest.raises(InputError, match="option 'where' is not known: The options are path, paths, columns"):
        AuditSource({"path": "x", "where": "[]"}).reader(AUDIT)


def test_options_are_known_however_they_are_capitalised() -> None:
    JournalSource({"path": "x", "partitionbytes": "4096"}).reader(journal_schema())
