"""Files of large messages' bodies: how many references need each one. The last that goes deletes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.store.large import LargeMessages
    from pollux.store.recovered import Recovered


class LargeFiles:
    """Counts the references to each file, hot or cold, by the file's id."""

    def __init__(self, files: LargeMessages) -> None:
        self._files = files
        self._needed: dict[int, int] = {}
        #: Recovered large messages: message id -> id of the file.
        self._cold: dict[int, int] = {}

    def restore(self, recovered: Recovered) -> None:
        """Count the references that were recovered."""
        self._cold = recovered.large
        for message_id, file_id in recovered.large.items():
            self.hold(file_id, recovered.references.get(message_id, 1))

    def freeze(self, message_id: int, file_id: int) -> None:
        """A large message is on disk only from now on: its references release its file by its own id."""
        self._cold[message_id] = file_id

    def hold(self, file_id: int, count: int) -> None:
        """Count so many more references that need the file of a large message."""
        self._needed[file_id] = self._needed.get(file_id, 0) + count

    def release(self, file_id: int) -> None:
        """Count one reference less that needs the file; the last one deletes it."""
        left = self._needed.get(file_id, 1) - 1
        if left > 0:
            self._needed[file_id] = left
            return
        self._needed.pop(file_id, None)
        self._files.delete(file_id)

    def release_cold(self, ids: Iterable[int]) -> None:
        """Release the files, if any, of references to the messages with these ids, which are on disk only."""
        if self._cold:
            for message_id in ids:
                file_id = self._cold.get(message_id)
                if file_id is not None:
                    self.release(file_id)
