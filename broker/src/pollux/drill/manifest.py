"""The manifest: which brokers take part in a drill, and how each is reached, killed and started again.

JSON, written by the Ansible bundle or by hand::

    {
      "members": [
        {
          "name": "castor",                          as in reports
          "url": "tcp://127.0.0.1:61616",            what clients connect to
          "management": "http://127.0.0.1:8161",     its HTTP API
          "pid_file": "/run/pollux/castor.pid",      the process to kill
          "start": ["/opt/pollux/bin/start"],        a command, or a string for the shell's word rules
          "stop": ["/opt/pollux/bin/stop"],          optional; without it SIGTERM
          "kill": ["stonith_admin", "--reboot=a"],   optional; without it SIGKILL
          "switchover": ["crm_resource", "--move"]   optional; without it the broker itself is asked
        }
      ],
      "user": "drill",                               optional, as are the following
      "password_file": "secret/drill"                relative to the manifest
    }

Relative paths are relative to the manifest. A member on another machine, which a resource manager runs, has no
pid_file: its stop command then ends when the broker has.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from msgspec import Struct

from pollux.client.errors import UrlError
from pollux.client.url import Endpoint, parse_url
from pollux.config.nearest import did_you_mean
from pollux.drill.errors import InputError
from pollux.redacted import Redacted

MAX_SIZE = 1024 * 1024
_MEMBER = ("name", "url", "management", "pid_file", "start", "stop", "kill", "switchover")
#: Commands that may be left out.
_OPTIONAL = ("stop", "kill", "switchover")
_TOP = ("members", "user", "password_file")
#: Other spellings of the same.
_ALIASES = {"management_url": "management", "start_command": "start", "stop_command": "stop", "pidfile": "pid_file"}


class Member(Struct, frozen=True):
    """One broker."""

    name: str
    url: str
    endpoints: tuple[Endpoint, ...]
    management: str
    #: None: its process is not on this machine.
    pid_file: Path | None
    start: tuple[str, ...]
    stop: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    switchover: tuple[str, ...] = ()


class Manifest(Redacted, frozen=True):
    """Hold what the file says."""

    hidden: ClassVar[frozenset[str]] = frozenset({"password"})

    members: tuple[Member, ...]
    user: str | None = None
    password: str | None = None


def load(path: Path) -> Manifest:
    """Read a manifest. Raises InputError with everything that is wrong."""
    try:
        if path.stat().st_size > MAX_SIZE:
            raise InputError(f"{path}: is larger than {MAX_SIZE} bytes")
        found = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
    return parse(found, path)


def parse(found: Any, path: Path) -> Manifest:
    """A manifest from decoded JSON; `path` is where it stood."""
    if not isinstance(found, dict):
        raise InputError(f"{path}: is not an object with 'members'")
    problems = [f"unknown field {name!r}{did_you_mean(name, _TOP)}" for name in found if name not in _TOP]
    listed = found.get("members")
    members: list[Member] = []
    if not isinstance(listed, list) or not listed:
        problems.append("'members' is not a list of at least one broker")
    else:
        for number, entry in enumerate(listed, start=1):
            members += _member(entry, number, path.parent, problems)
    pid_files = [str(m.pid_file) for m in members if m.pid_file is not None]
    for names, what in (([m.name for m in members], "name"), (pid_files, "pid_file")):
        problems += [f"two members have the {what} {name!r}" for name in sorted(set(names)) if names.count(name) > 1]
    user, password = found.get("user"), None
    if user is not None and not isinstance(user, str):
        problems.append("'user' is not text")
    secret = found.get("password_file")
    if secret is not None:
        try:
            password = (path.parent / str(secret)).read_text().rstrip("\n")
        except OSError as error:
            problems.append(f"'password_file' {secret}: {error.strerror}")
    if problems:
        raise InputError("\n".join(f"{path}: {problem}" for problem in problems))
    return Manifest(tuple(members), user if isinstance(user, str) else None, password)


def _member(entry: Any, number: int, base: Path, problems: list[str]) -> list[Member]:
    """One member, or none and the problems."""
    where = f"member {number}"
    if not isinstance(entry, dict):
        problems.append(f"{where} is not an object")
        return []
    entry = {_ALIASES.get(name, name): value for name, value in entry.items()}
    before = len(problems)
    where = f"member {entry.get('name') or number!r}"
    problems += [
        f"{where}: unknown field {name!r}{did_you_mean(name, _MEMBER)}" for name in entry if name not in _MEMBER
    ]
    for name in ("name", "url", "management", *(["pid_file"] if "pid_file" in entry or "stop" not in entry else [])):
        if not isinstance(entry.get(name), str) or not entry[name]:
            problems.append(f"{where}: {name!r} is missing or not text")
    start = _command(entry.get("start"), base)
    if not start:
        problems.append(f"{where}: 'start' is missing or not a command")
    commands = {name: _command(entry.get(name, []), base) for name in _OPTIONAL}
    problems += [f"{where}: {name!r} is not a command" for name, command in commands.items() if command is None]
    if len(problems) > before:
        return []
    try:
        endpoints = parse_url(entry["url"]).endpoints
    except UrlError as error:
        problems.append(f"{where}: 'url': {error}")
        return []
    management = urlsplit(entry["management"])
    if management.scheme not in ("http", "https") or not management.hostname:
        problems.append(f"{where}: 'management' {entry['management']!r} is not http://HOST:PORT or https://HOST:PORT")
        return []
    pid_file = base / entry["pid_file"] if "pid_file" in entry else None
    url = f"{management.scheme}://{management.netloc}"
    given = {name: command or () for name, command in commands.items()}
    return [Member(entry["name"], entry["url"], endpoints, url, pid_file, start or (), **given)]


def _command(value: Any, base: Path) -> tuple[str, ...] | None:
    """The words of a command, its program relative to the manifest; None when it is not one."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError:
            return None
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        return None
    if not value:
        return ()
    program = value[0]
    if "/" in program and not Path(program).is_absolute():
        program = str(base / program)
    return (program, *value[1:])
