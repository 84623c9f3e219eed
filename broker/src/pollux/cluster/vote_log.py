"""Other nodes' sequences as a member was told them, over restarts: a small file beside its journal."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from pollux.logs import event
from pollux.store.files import FileOperations, replace_file

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("pollux.ha")

#: A file of the process, not of the store: it is neither copied nor moved aside.
FILE = "pollux.quorum"


def read(directory: Path) -> dict[str, int]:
    """The sequences by node id; none where the file is missing or cannot be read, which is logged."""
    try:
        found = json.loads((directory / FILE).read_text(encoding="utf-8"))
        return {str(node): int(sequence) for node, sequence in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        event(logger, logging.WARNING, "what other nodes said is forgotten", reason=str(error))
        return {}


def write(directory: Path, sequences: dict[str, int]) -> None:
    """Replace the file; on stable storage when it returns. Blocking. Raises OSError."""
    replace_file(FileOperations(), directory / FILE, json.dumps(sequences).encode())
