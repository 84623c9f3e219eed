"""Files that another process of this broker has told us of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.store.files import FileOperations

if TYPE_CHECKING:
    from pollux.store.port import Files


def files_of(handle: bytes) -> Files:
    """Return the files of which :meth:`pollux.store.port.Files.handle` is given."""
    if not handle:
        return FileOperations()
    from pollux.store.sql.files import SqlFiles

    return SqlFiles.found(handle)
