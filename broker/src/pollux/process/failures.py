"""Tell whoever started a broker what a start that failed means: its exit code. Pure."""

from __future__ import annotations

import errno

from pollux.config import ConfigError
from pollux.config.users import UsersError
from pollux.errors import StoreError, StoreRefusedError
from pollux.process.acceptor import ListenError
from pollux.process.exits import EXIT_FAILED, EXIT_LISTEN, EXIT_LOCKED, EXIT_STORE, EXIT_STORE_REFUSED, EXIT_USAGE
from pollux.store.data_lock import DirectoryLockedError
from pollux.store.locks import LockTimeoutError

#: The first that fits counts.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (ConfigError, EXIT_USAGE),
    (UsersError, EXIT_USAGE),
    (DirectoryLockedError, EXIT_LOCKED),
    (LockTimeoutError, EXIT_LOCKED),
    (ListenError, EXIT_LISTEN),
    (StoreRefusedError, EXIT_STORE_REFUSED),
    (StoreError, EXIT_STORE),
)
#: Errors of system calls that say that a disk, or the server behind it, fails: whatever the file was.
_DISK_ERRORS = frozenset(
    (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT, errno.EUCLEAN)
)


def exit_code(error: BaseException) -> int:
    """Return the exit code (:mod:`pollux.process.exits`) of a broker whose start ended with this error."""
    reason = error if isinstance(error, OSError) else error.__cause__
    if isinstance(reason, OSError) and reason.errno in _DISK_ERRORS:
        return EXIT_STORE
    return next((code for kind, code in _CODES if isinstance(error, kind)), EXIT_FAILED)
