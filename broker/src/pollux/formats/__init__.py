"""The files on disk, byte by byte: journal, checkpoint, audit trail, ledger.

Of the broker it imports only what its formats are made of and fail with. That is found here, too, so that who reads the
files without the broker imports nothing else of it.
"""

from pollux.errors import StoreError
from pollux.message import Encoding

__all__ = ["Encoding", "StoreError"]
