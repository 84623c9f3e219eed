"""Users, their SCRAM verifiers and their roles, in properties files named as Apache Artemis names them.

``artemis-users.properties`` holds ``user = SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`` (RFC 5803;
base64), never a password: whoever reads the file cannot log in with what it says. ``artemis-roles.properties`` holds
``role = user, user``. A certificate mapping file holds ``user = <subject DN>`` or ``user = /<regular expression>/``.

Reading refuses clear text with file and line; :mod:`pollux.config.users_editor` writes. This module does not know what
a connection or a permission is.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pollux.config.properties import parse_properties
from pollux.config.verifiers import KEY_BYTES, MECHANISM, Verifier
from pollux.errors import PolluxError

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.properties import Line

MAXIMUM_FILE_BYTES = 16 * 1024 * 1024
_DECOY = re.compile(r"^#\s*pollux-decoy-key:\s*(\S+)\s*$")


class UsersError(PolluxError):
    """Users, roles or certificate mapping files cannot be used as they are; each problem says where and what to do."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


# The bundle uses this module without what the broker depends on.
@dataclass(frozen=True, slots=True)
class Users:
    """Who may log in: a snapshot of the files, replaced as a whole on reload."""

    verifiers: dict[str, Verifier] = field(default_factory=dict)
    roles: dict[str, frozenset[str]] = field(default_factory=dict)
    #: (user, exact normalised DN or None, pattern or None), in file order.
    certificates: tuple[tuple[str, str | None, re.Pattern[str] | None], ...] = ()
    #: Key for the salts invented for unknown users, so that they look like known ones (also after a restart).
    decoy_key: bytes = field(default=b"", repr=False)

    def roles_of(self, user: str) -> frozenset[str]:
        """The roles of ``user``; empty when it has none."""
        return self.roles.get(user, frozenset())

    def certificate_user(self, subject: str) -> str | None:
        """The user that the certificate subject ``subject`` (RFC 4514) is mapped to."""
        normal = normalise_dn(subject)
        for user, exact, pattern in self.certificates:
            if exact is not None and exact == normal:
                return user
            if pattern is not None and pattern.fullmatch(subject):
                return user
        return None


def normalise_dn(text: str) -> str:
    """A distinguished name (RFC 4514) in one spelling: attribute types in capitals, no blanks around separators.

    ``CN=Ada, O=Twins`` and ``cn=Ada,o=Twins`` are the same name; escaped separators stay part of the value.
    """
    names: list[str] = []
    for rdn in re.split(r"(?<!\\),", text):
        parts = []
        for attribute in re.split(r"(?<!\\)\+", rdn):
            kind, _, value = attribute.partition("=")
            parts.append(f"{kind.strip().upper()}={value.strip()}")
        names.append("+".join(sorted(parts)))
    return ",".join(names)


def load_users(users: Path, roles: Path, certificates: Path | None = None) -> Users:
    """Read and check the files. A missing users or roles file means nobody.

    Raises UsersError with everything that is wrong with any of them.
    """
    problems: list[str] = []
    verifiers, decoy = _load_verifiers(users, problems)
    members = _load_roles(roles, problems)
    mappings = _load_certificates(certificates, problems) if certificates is not None else ()
    if problems:
        raise UsersError(*problems)
    return Users(
        verifiers,
        {user: frozenset(names) for user, names in members.items()},
        mappings,
        decoy or secrets.token_bytes(KEY_BYTES),
    )


def _text(path: Path, problems: list[str], *, secret: bool) -> str | None:
    try:
        return read_file(path, secret=secret)
    except UsersError as error:
        problems += error.problems
        return None


def _load_verifiers(path: Path, problems: list[str]) -> tuple[dict[str, Verifier], bytes]:
    verifiers: dict[str, Verifier] = {}
    seen: set[str] = set()
    text = _text(path, problems, secret=True)
    for entry in parse_properties(text or ""):
        where = f"{path}:{entry.start + 1}"
        if not entry.key:
            problems.append(f"{where}: a user needs a name")
        elif entry.key in seen:
            problems.append(f"{where}: user {entry.key!r} is listed twice; remove one line")
        else:
            seen.add(entry.key)
            try:
                verifiers[entry.key] = _parse_verifier(entry, where)
            except UsersError as error:
                problems += error.problems
    return verifiers, decoy_key(text or "")


def _load_roles(path: Path, problems: list[str]) -> dict[str, set[str]]:
    members: dict[str, set[str]] = {}
    for entry in parse_properties(_text(path, problems, secret=False) or ""):
        if not entry.key:
            problems.append(f"{path}:{entry.start + 1}: a role needs a name")
        for user in members_of(entry.value):
            members.setdefault(user, set()).add(entry.key)
    return members


def _parse_verifier(entry: Line, where: str) -> Verifier:
    try:
        return Verifier.parse(entry.value)
    except ValueError as error:
        if entry.value.startswith(MECHANISM + "$"):
            reason = f"user {entry.key!r}: {error}"
        else:
            # Clear text, ENC(...) of Artemis, or a default: none of them may be used, and none is repeated here.
            reason = f"user {entry.key!r}: {error}; clear-text and masked passwords are not accepted"
        raise UsersError(f"{where}: {reason}; set it again with: pollux user add {entry.key}") from None


def _load_certificates(path: Path, problems: list[str]) -> tuple[tuple[str, str | None, re.Pattern[str] | None], ...]:
    mappings: list[tuple[str, str | None, re.Pattern[str] | None]] = []
    for entry in parse_properties(_text(path, problems, secret=False) or ""):
        where = f"{path}:{entry.start + 1}"
        if not entry.key or not entry.value:
            problems.append(f"{where}: expected <user> = <subject DN> or <user> = /<regular expression>/")
        elif len(entry.value) > 2 and entry.value[0] == entry.value[-1] == "/":
            try:
                mappings.append((entry.key, None, re.compile(entry.value[1:-1])))
            except re.error as error:
                problems.append(f"{where}: the regular expression is not valid: {error}")
        else:
            mappings.append((entry.key, normalise_dn(entry.value), None))
    return tuple(mappings)


def members_of(value: str) -> list[str]:
    """Return the users a role's line names."""
    return [name for name in (part.strip() for part in value.split(",")) if name]


def decoy_key(text: str) -> bytes:
    """The key in a users file's comment, empty when there is none."""
    for line in text.split("\n"):
        match = _DECOY.match(line)
        if match is not None:
            try:
                return base64.b64decode(match[1], validate=True)
            except binascii.Error:
                return b""
    return b""


def read_file(path: Path, *, secret: bool) -> str | None:
    """The file's text, None when it does not exist; refuses files that others could read or change."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsersError(f"{path}: is not a regular file")
            loose = status.st_mode & (0o077 if secret else 0o022)
            if loose:
                wanted = "600" if secret else "640"
                can = "readable" if secret else "writable"
                mode = stat.S_IMODE(status.st_mode)
                raise UsersError(f"{path}: mode {mode:03o} makes it {can} by others; run: chmod {wanted} {path}")
            if status.st_size > MAXIMUM_FILE_BYTES:
                raise UsersError(f"{path}: is larger than {MAXIMUM_FILE_BYTES} bytes")
            return file.read(MAXIMUM_FILE_BYTES).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UsersError(f"{path}: is not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise UsersError(f"{path}: cannot be read: {error.strerror}") from error
