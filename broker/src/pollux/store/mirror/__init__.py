"""A second copy of a store, kept by repeating every change of its files elsewhere. See docs/replication.md.

* :mod:`pollux.store.mirror.operations`: changes of files as values and bytes
* :mod:`pollux.store.mirror.files`: the store's system calls, that tell a mirror what they change
* :mod:`pollux.store.mirror.mirror`: who has to be told, and whose word a sync waits for
* :mod:`pollux.store.mirror.first_copy`: the first copy, made while the store is in use
* :mod:`pollux.store.mirror.pieces`: hashes of files, so that a copy is compared without being read
* :mod:`pollux.store.mirror.replica`: the other side, which repeats the changes
"""

from pollux.store.mirror.files import MirroredFiles
from pollux.store.mirror.mirror import Link, Mirror
from pollux.store.mirror.operations import Operation, OperationType
from pollux.store.mirror.replica import Replica

__all__ = ["Link", "Mirror", "MirroredFiles", "Operation", "OperationType", "Replica"]
