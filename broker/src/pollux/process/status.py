"""Leave for the local administrator of a running broker: a status file and an access token.

Both are in the journal's directory (which one broker only may use), mode 0600, and go when it stops. The
token lets the operating system user that runs the broker use ``pollux`` without a password.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from pollux.ha.runtime import STATUS_FILE, TOKEN_FILE

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN_BYTES = 32


def write_private(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, readable by this user only."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


class Status:
    """Write and remove the two files of one life."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)

    def write(self, values: dict[str, Any]) -> None:
        """Write the status file, and the token on the first call."""
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        token = self._directory / TOKEN_FILE
        write_private(token, self._token + "\n")
        write_private(self._directory / STATUS_FILE, json.dumps(values, indent=2, default=str) + "\n")

    def is_token(self, text: str) -> bool:
        """Whether ``text`` is the token of this life."""
        # Bytes of a header that are not UTF-8 come as surrogates.
        return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._token.encode())

    def remove(self) -> None:
        """Remove both files: the broker stops, and nobody shall find it here."""
        for name in (STATUS_FILE, TOKEN_FILE):
            (self._directory / name).unlink(missing_ok=True)
