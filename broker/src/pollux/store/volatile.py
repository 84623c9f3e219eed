"""Large messages and pages of a store without persistence: files that no life reads but the one that wrote them."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.store.files import is_directory, names_in
from pollux.store.lost_files import LARGE_NAME
from pollux.store.page_files import STORE_NAME
from pollux.store.pages import remove_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.store.port import Files
    from pollux.store.settings import StoreSettings

logger = logging.getLogger(__name__)

#: The directory of those files, in that of large messages and in that of pages.
VOLATILE = "volatile"


def apart(settings: StoreSettings) -> StoreSettings:
    """Return settings by which such files are apart from those of a store that keeps its own, and never synced."""
    return replace(
        settings,
        large_messages_directory=settings.large_messages_directory / VOLATILE,
        paging_directory=settings.paging_directory / VOLATILE,
        journal_datasync=False,
    )


def remove(files: Files, settings: StoreSettings) -> None:
    """Delete all such files: this process's at its end, and what one that was killed left. What is not ours stays."""
    large, paging = settings.large_messages_directory, settings.paging_directory
    for name in names_in(files, large):
        if LARGE_NAME.fullmatch(name):
            _delete(files.unlink, large / name)
    for name in names_in(files, paging):
        if STORE_NAME.fullmatch(name):
            _delete(partial(remove_store, files), paging / name)
    for directory in (large, paging):
        if is_directory(files, directory):
            _delete(files.remove_directory, directory)


def _delete(delete: Callable[[Path], None], path: Path) -> None:
    """Delete one; what cannot be deleted stops neither a start nor an end."""
    try:
        delete(path)
    except OSError as error:
        logger.warning("%s stays: %s", path, error.strerror or error)
