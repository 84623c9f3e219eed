"""Writes the users and roles files of a broker whole; verifiers are derived on the controller, once for all brokers.

``pollux_users`` takes ``users`` (name, password, roles), ``key`` and where the files are. The module
``pollux_users_files`` reads them on the broker's machine, this plugin decides what they must hold, and only a
difference is sent there. So neither a password nor the key leaves the controller.

The salt of a user is an HMAC of name and password under ``key``. So the files of all members are the same (a client
that computed its keys once can use them after a failover), an unchanged password is recognised without hashing, and
nobody without the key learns anything from a salt. The file holds an HMAC of itself: what somebody else wrote into it
is not believed, but derived anew.

Ansible runs this in one process for each broker. They share what they derive in the directory that Ansible makes for
the run (mode 0700) and removes after it: verifiers by salt, no passwords. Names, verifiers and the syntax of files are
the broker's own code, from the sources or the wheel that are installed (``package``), without what that depends on.
Returns names, never verifiers, and ``derived``: how many verifiers were derived for this broker.
"""

from __future__ import annotations

import base64
import concurrent.futures
import fcntl
import functools
import hashlib
import hmac
import importlib
import json
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_MAC = re.compile(r"^# pollux-bundle: (\S+)$", re.MULTILINE)
_HEADER = "# Written by the Pollux bundle from the inventory; changes made here are undone by its next run."
_MODULES = ("properties", "users", "users_editor", "verifiers")
_FILES = ("users_file", "roles_file", "owner", "group")

#: Verifiers by salt (hexadecimal).
Verifiers = dict[str, str]
#: Gives the verifiers of these users (salt: name and password).
Deriving = Callable[[Mapping[str, tuple[str, str]]], Mapping[str, str]]


class ActionModule(ActionBase):
    """Derive users on the controller, and write them on the broker's machine."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the files of one broker, and replace them where they are not what they must be."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            argument_spec={
                "users": {
                    "type": "list",
                    "elements": "dict",
                    "required": True,
                    "options": {
                        "name": {"type": "str", "required": True},
                        "password": {"type": "str", "required": True, "no_log": True},
                        "roles": {"type": "list", "elements": "str", "required": True},
                    },
                },
                "key": {"type": "str", "required": True, "no_log": True},
                "package": {"type": "path", "required": True},
                "users_file": {"type": "path", "required": True},
                "roles_file": {"type": "path", "required": True},
                "note": {"type": "path"},
                "owner": {"type": "str"},
                "group": {"type": "str"},
            }
        )
        code = broker_code(given["package"])
        key = hashlib.sha256(given["key"].encode()).digest()
        places = {name: given[name] for name in _FILES}
        found = self._execute_module("pollux_users_files", module_args=places, task_vars=task_vars)
        if found.get("failed"):
            return {**result, **found}
        derived: list[str] = []

        def derive(wanted: Mapping[str, tuple[str, str]]) -> Mapping[str, str]:
            if self._task.check_mode:  # what is new is known without the price of deriving it
                return dict.fromkeys(wanted, "(not derived in check mode)")
            work = functools.partial(verifier, code)
            return derived_once(Path(constants.DEFAULT_LOCAL_TMP), wanted, work, derived)

        try:
            users = users_text(code, given["users"], key, found["users_text"], derive)
            roles = roles_text(code, given["users"])
            old = names_and_roles(code, found["users_text"], found["roles_text"])
        except (ValueError, OSError, code.users.UsersError) as error:  # names the user or the file, never a password
            raise AnsibleActionFail(f"the users cannot be written: {error}") from None
        new = names_and_roles(code, users, roles)
        changed = bool(found["changed"])
        if (users, roles) != (found["users_text"], found["roles_text"]):
            changed = True
            if not self._task.check_mode:
                wanted = {**places, "note": given["note"], "users_text": users, "roles_text": roles}
                written = self._execute_module("pollux_users_files", module_args=wanted, task_vars=task_vars)
                if written.get("failed"):
                    return {**result, **written}
        return {
            **result,
            "changed": changed,
            "added": sorted(new.keys() - old.keys()),
            "removed": sorted(old.keys() - new.keys()),
            "changed_users": sorted(name for name in new.keys() & old.keys() if new[name] != old[name]),
            "derived": len(derived),
        }


def broker_code(place: str) -> types.SimpleNamespace:
    """Return the broker's modules for names, verifiers and properties files, from a directory or a wheel.

    Its packages are stood in for by empty ones: theirs would import what the broker depends on, which the controller
    need not have. Modules of a broker that is installed here are neither used nor lost.
    """
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "pollux"}
    without_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        for name in ("pollux", "pollux.config"):
            package = types.ModuleType(name)
            package.__path__ = [str(Path(place, *name.split(".")))]
            sys.modules[name] = package
        return types.SimpleNamespace(**{name: importlib.import_module(f"pollux.config.{name}") for name in _MODULES})
    except ImportError as error:
        raise AnsibleActionFail(
            f"{place} does not hold the broker's Python package ({error}): broker_source must be a checkout's broker "
            "directory, broker_wheelhouse one that tools/wheelhouse.py made"
        ) from error
    finally:
        sys.dont_write_bytecode = without_bytecode
        for name in [name for name in sys.modules if name.partition(".")[0] == "pollux"]:
            del sys.modules[name]
        sys.modules.update(held)


def seal(key: bytes, *parts: str) -> bytes:
    """Return a keyed digest of texts."""
    return hmac.digest(key, "\0".join(parts).encode(), "sha256")


def verifier(code: types.SimpleNamespace, salt: str, name: str, password: str) -> str:
    """Derive one verifier (10 ms of a processor). Raises ValueError, which names the user."""
    try:
        return str(code.verifiers.Verifier.create(password, salt=bytes.fromhex(salt)))
    except ValueError as error:
        raise ValueError(f"password of user {name!r}: {error}") from None


def derived_once(
    directory: Path, wanted: Mapping[str, tuple[str, str]], derive: Callable[[str, str, str], str], derived: list[str]
) -> Verifiers:
    """Return the verifiers of all who are ``wanted``; derive those that no process of this run has yet.

    ``directory`` belongs to this run alone. Names of users whose verifiers were derived here go into ``derived``.
    """
    store = directory / "pollux-verifiers.json"
    with open(os.open(directory / "pollux-verifiers.lock", os.O_CREAT | os.O_RDWR, 0o600), "rb") as lock:  # noqa: PTH123
        # Whoever holds the lock works on what is wanted here too, or is dead and has it no more: no deadline.
        fcntl.flock(lock, fcntl.LOCK_EX)
        held: Verifiers = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
        missing = [salt for salt in wanted if salt not in held]
        # hashlib lets go of the interpreter while it hashes: threads use all processors.
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            held.update(zip(missing, threads.map(lambda salt: derive(salt, *wanted[salt]), missing), strict=True))
        if missing:
            temporary = store.with_suffix(".new")
            with open(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump(held, file)
            temporary.replace(store)
    derived += [wanted[salt][0] for salt in missing]
    return {salt: held[salt] for salt in wanted}


def users_text(
    code: types.SimpleNamespace, users: Iterable[Mapping[str, Any]], key: bytes, previous: str, derive: Deriving
) -> str:
    """Return the users file; verifiers in ``previous``, its old content, are kept where the password is the same."""
    known: Verifiers = {}
    found = _MAC.search(previous)
    body = _MAC.sub("", previous)
    if found and hmac.compare_digest(found[1], base64.b64encode(seal(key, "file", body)).decode()):
        for entry in code.properties.parse_properties(body):
            old = code.verifiers.Verifier.parse(entry.value)
            if old.iterations == code.verifiers.DEFAULT_ITERATIONS:
                known[old.salt.hex()] = entry.value
    wanted: dict[str, tuple[str, str]] = {}
    for user in users:
        name, password = code.users_editor.check_user_name(str(user["name"])), str(user["password"])
        wanted[seal(key, "salt", name, password)[: code.verifiers.SALT_BYTES].hex()] = (name, password)
    missing = {salt: user for salt, user in wanted.items() if salt not in known}
    verifiers = {**known, **(derive(missing) if missing else {})}
    escape_key, escape_value = code.properties.escape_key, code.properties.escape_value
    lines = [f"{escape_key(name)} = {escape_value(verifiers[salt])}" for salt, (name, _) in wanted.items()]
    decoy = base64.b64encode(seal(key, "decoy")).decode()
    body = "\n".join([_HEADER, f"# pollux-decoy-key: {decoy}", "", *lines, ""])
    mac = base64.b64encode(seal(key, "file", body)).decode()
    return body.replace("\n\n", f"\n# pollux-bundle: {mac}\n", 1)


def roles_text(code: types.SimpleNamespace, users: Iterable[Mapping[str, Any]]) -> str:
    """Return the roles file."""
    members: dict[str, list[str]] = {}
    for user in users:
        for role in user["roles"]:
            members.setdefault(code.users_editor.check_role_name(str(role)), []).append(str(user["name"]))
    escape_key, escape_value = code.properties.escape_key, code.properties.escape_value
    lines = [f"{escape_key(role)} = {escape_value(','.join(names))}" for role, names in sorted(members.items())]
    return "\n".join([_HEADER, *lines, ""])


def names_and_roles(code: types.SimpleNamespace, users: str, roles: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return verifier and roles by user, of files as they are."""
    belongs: dict[str, set[str]] = {}
    for entry in code.properties.parse_properties(roles):
        for user in entry.value.split(","):
            belongs.setdefault(user.strip(), set()).add(entry.key)
    entries = code.properties.parse_properties(users)
    return {entry.key: (entry.value, frozenset(belongs.get(entry.key, ()))) for entry in entries}
