"""Adds and removes users in the users and roles files; writing is atomic and keeps comments and order."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pollux.config.properties import escape_key, escape_value, parse_properties
from pollux.config.saslprep import saslprep
from pollux.config.users import UsersError, decoy_key, load_users, members_of, read_file
from pollux.config.verifiers import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config.verifiers import Verifier

_HEADER = "# Written by pollux user add: SCRAM-SHA-256 verifiers, no passwords."
#: How long an editor waits for another one on the same files, seconds.
LOCK_TIMEOUT = 10.0


class UsersEditor:
    """Adds, lists and removes users in the two files. Each change is written whole, synced and renamed into place."""

    def __init__(self, users: Path, roles: Path) -> None:
        self.users = users
        self.roles = roles

    def everyone(self) -> dict[str, frozenset[str]]:
        """Return every user with its roles."""
        loaded = load_users(self.users, self.roles)
        return {user: loaded.roles_of(user) for user in loaded.verifiers}

    def add(self, user: str, verifier: Verifier, roles: frozenset[str] | None = None) -> bool:
        """Add ``user`` or give it a new password; ``roles`` None keeps what it has. Returns whether it is new.

        Raises UsersError for a name that cannot be stored and for files that cannot be read or written.
        """
        name = check_user_name(user)
        for role in roles or ():
            check_role_name(role)
        with _exclusive(self.users):
            return self._add(name, verifier, roles)

    def _add(self, name: str, verifier: Verifier, roles: frozenset[str] | None) -> bool:
        text = read_file(self.users, secret=True) or ""
        value = f"{escape_key(name)} = {escape_value(str(verifier))}"
        lines, found = self._replaced(text, name, value)
        if not found:
            lines.append(value)
        if not decoy_key(text):
            key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode("ascii")
            lines[:0] = [_HEADER, f"# pollux-decoy-key: {key}"]
        if roles is not None:
            # Roles first: a crash in between leaves a role member without a log-in, which can do nothing.
            self._set_roles(name, roles)
        _write(self.users, lines, 0o600)
        return not found

    def remove(self, user: str) -> None:
        """Remove ``user`` from both files. Raises UsersError when there is none of that name."""
        with _exclusive(self.users):
            text = read_file(self.users, secret=True) or ""
            lines, found = self._replaced(text, user, None)
            if not found:
                raise UsersError(f"{self.users}: there is no user {user!r}; see: pollux user list")
            _write(self.users, lines, 0o600)
            self._set_roles(user, frozenset())

    @staticmethod
    def _replaced(text: str, key: str, value: str | None) -> tuple[list[str], bool]:
        """The lines of ``text`` with the entry of ``key`` replaced by ``value`` (None: left out)."""
        lines = text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        result: list[str] = []
        position = 0
        found = False
        for entry in parse_properties(text):
            result += lines[position : entry.start]
            if entry.key != key:
                result += lines[entry.start : entry.end]
            elif not found:
                found = True
                if value is not None:
                    result.append(value)
            position = entry.end
        result += lines[position:]
        return result, found

    def _set_roles(self, user: str, roles: frozenset[str]) -> None:
        text = read_file(self.roles, secret=False) or ""
        lines = text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        result: list[str] = []
        position = 0
        wanted = set(roles)
        for entry in parse_properties(text):
            result += lines[position : entry.start]
            position = entry.end
            members = members_of(entry.value)
            keep = [member for member in members if member != user]
            if entry.key in wanted:
                wanted.discard(entry.key)
                keep = [*members] if user in members else [*members, user]
            if keep == members:
                result += lines[entry.start : entry.end]
            elif keep:
                result.append(f"{escape_key(entry.key)} = {escape_value(','.join(keep))}")
        result += lines[position:]
        result += [f"{escape_key(role)} = {escape_value(user)}" for role in sorted(wanted)]
        if result != lines:
            _write(self.roles, result, 0o640)


def check_user_name(user: str) -> str:
    """``user`` SASLprepped, or UsersError saying what is wrong with it as a name."""
    try:
        name = saslprep(user, stored=True)
    except ValueError as error:
        raise UsersError(f"user name {user!r}: {error}") from None
    if not name or name != name.strip() or "," in name:
        raise UsersError(f"user name {user!r}: must not be empty, hold a comma or begin or end with a blank")
    return name


def check_role_name(role: str) -> str:
    """``role``, or UsersError saying what is wrong with it as a name."""
    if not role or role != role.strip() or "," in role or any(ord(character) < 32 for character in role):
        raise UsersError(f"role name {role!r}: must not be empty, hold a comma or begin or end with a blank")
    return role


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold the directory of ``path`` against other editors, so that no change of theirs is overwritten."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsersError(f"{path.parent}: cannot be opened: {error.strerror}") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UsersError(f"{path}: another process has been editing it for {LOCK_TIMEOUT:.0f} s") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, lines: list[str], mode: int) -> None:
    """Replace ``path`` atomically and durably, keeping its owner."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                try:
                    previous = path.stat()
                    os.fchown(file.fileno(), previous.st_uid, previous.st_gid)
                    mode = stat.S_IMODE(previous.st_mode)
                except FileNotFoundError:
                    pass
                os.fchmod(file.fileno(), mode)
                file.write("".join(line + "\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise UsersError(f"{path}: cannot be written: {error.strerror}") from error
