"""The variables of a host, evaluated and judged by the roles' argument specifications."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .member import Member, Variables
from .problems import Problem

#: Roles whose variables are checked, and the prefix each has for itself.
ROLES = (
    *("topology", "broker", "shared_store", "database_store", "pipeline", "zookeeper"),
    *("pacemaker", "rgmanager", "virtual_ip"),
)
#: What earlier bundles and other people's roles call things, and what it is called here.
RENAMED = {
    "broker_master": "broker_preferred: live",
    "broker_slave": "broker_preferred: backup",
    "broker_live": "broker_preferred: live",
    "broker_backup": "broker_preferred: backup",
    "broker_pair": "broker_group",
    "broker_host": "broker_address",
    "broker_port": "broker_acceptors",
    "broker_home": "broker_root",
    "broker_instance": "broker_root",
    "broker_version": "broker_wheelhouse",
    "broker_user": "broker_system_user",
    "broker_queues": "broker_addresses",
    "broker_failure_zone": "broker_failure_domain",
    "shared_store_mount": "shared_store_path",
    "shared_store_export": "shared_store_source",
    "shared_store_mount_options": "shared_store_options",
    "activemq_ha_enabled": "broker_ha_policy",
    "activemq_ha_role": "broker_preferred",
    "activemq_shared_storage": "broker_ha_policy: shared_store",
    "activemq_shared_storage_path": "shared_store_path",
    "activemq_nfs_mount_source": "shared_store_source",
    "activemq_nfs_mount_opts": "shared_store_options",
    "activemq_port": "broker_acceptors",
    "activemq_ports_offset": "broker_port_offset",
    "activemq_users": "broker_users",
    "activemq_addresses": "broker_addresses",
    "activemq_queues": "broker_addresses",
    "activemq_acceptors": "broker_acceptors",
    "activemq_address_settings": "broker_address_settings",
    "activemq_cluster_user": "broker_cluster_user",
    "activemq_cluster_pass": "broker_cluster_password",
    "activemq_instance_username": "broker_users",
    "activemq_instance_password": "broker_users",
    "activemq_service_user": "broker_system_user",
    "activemq_service_group": "broker_system_group",
}
_JINJA_NAME = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class UnreadableError(Exception):
    """Say why a variable cannot be evaluated."""


def read(variables: Variables, name: str) -> Any:
    """Return the value of a variable, evaluated. Raises UnreadableError with the reason."""
    try:
        value = variables[name]
        return _plain(value)
    except UnreadableError:
        raise
    except Exception as error:  # the templating engine's own errors, of which there are many
        text = str(error).strip().split("\n", 1)[0].rstrip(". ")
        raise UnreadableError(text or type(error).__name__) from error


def _plain(value: Any) -> Any:
    """Return ``value`` with everything in it evaluated, as plain containers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    # Jinja's Undefined or one of Ansible's heirs of it, whose names differ between versions.
    if any(kind.__name__ == "Undefined" for kind in type(value).__mro__):
        raise UnreadableError(str(getattr(value, "_undefined_message", "") or "it is undefined"))
    return value


def read_member(host: str, given: Variables, specifications: Mapping[str, Any], problems: list[Problem]) -> Member:
    """Return a host with the value of every public variable: what the inventory says, else the default."""
    options: dict[str, Mapping[str, Any]] = {}
    for role in ROLES:
        options.update(specifications[role])
    _check_names(host, given, options, problems)
    value: dict[str, Any] = {}
    for name, option in options.items():
        value[name] = option.get("default", _EMPTY[option.get("type", "str")])
        if name not in given:
            continue
        try:
            found = read(given, name)
        except UnreadableError as error:
            problems.append(Problem(host, name, f"cannot be evaluated: {error}", _remedy_for_undefined(str(error))))
            continue
        wrong = list(_judge(name, found, option))
        problems += [Problem(host, at, what, remedy) for at, what, remedy in wrong]
        if not wrong:
            value[name] = _converted(found, option)
    for name, item in value.items():
        if isinstance(item, str) and "{{" in item:
            value[name] = _substituted(item, given, value)
    return Member(host, given, value)


_EMPTY: dict[str, Any] = {"str": "", "path": "", "int": 0, "bool": False, "list": [], "dict": {}, "raw": ""}


def _substituted(text: str, given: Variables, value: Mapping[str, Any]) -> str:
    """Return a default that is written with the names of other variables."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return str(value[name] if name in value else given.get(name, ""))

    while "{{" in text:
        done = _JINJA_NAME.sub(replace, text)
        if done == text:
            break
        text = done
    return text


def _remedy_for_undefined(reason: str) -> str:
    match = re.search(r"'(\w*vault\w*)' is undefined", reason)
    if match:
        return (
            f"create the vault file that defines {match[1]} (see vault.yml.example in the inventory's group_vars)"
            " and give --vault-password-file or --ask-vault-pass"
        )
    return "define what it refers to"


def _check_names(host: str, given: Variables, options: Mapping[str, Any], problems: list[Problem]) -> None:
    for name in given:
        if name in options:
            continue
        if name in RENAMED:
            problems.append(Problem(host, name, "has another name here", f"use {RENAMED[name]}"))
        elif any(name.startswith(f"{role}_") for role in ROLES):
            near = difflib.get_close_matches(name, list(options), n=1, cutoff=0.75)
            remedy = f"write {near[0]}" if near else "remove it; roles/*/README.md list what there is"
            problems.append(Problem(host, name, "is not a variable of this bundle", remedy))


def _judge(name: str, value: Any, option: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Yield what is wrong with a value by its specification: (where, what, remedy)."""
    kind = str(option.get("type", "str"))
    expected = {
        "str": "text",
        "path": "a path",
        "int": "an integer",
        "bool": "true or false",
        "list": "a list",
        "dict": "a dictionary",
    }
    right = {
        "str": isinstance(value, (str, int, float)) and not isinstance(value, bool),
        "path": isinstance(value, str),
        "int": _integer(value) is not None,
        "bool": _boolean(value) is not None,
        "list": isinstance(value, list),
        "dict": isinstance(value, dict),
        "raw": True,
    }[kind]
    if not right:
        yield name, f"must be {expected[kind]}, is {_kind_of(value)}", f"write {expected[kind]}"
        return
    choices = option.get("choices")
    if choices and value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
        yield name, f"{value!r} is not one of {allowed}", f"write {near[0]!r}" if near else f"choose one of {allowed}"
    if kind == "list":
        element = {"type": option.get("elements", "str"), "options": option.get("options")}
        for index, item in enumerate(value):
            yield from _judge(f"{name}[{_label(item, index)}]", item, element)
    elif kind == "dict" and option.get("options"):
        yield from _judge_keys(name, value, option["options"])


def _judge_keys(name: str, value: Mapping[str, Any], options: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    for key, item in value.items():
        if key in options:
            yield from _judge(f"{name}.{key}", item, options[key])
        else:
            near = difflib.get_close_matches(key, list(options), n=1)
            known = ", ".join(options)
            yield f"{name}.{key}", "is not known here", f"write {near[0]}" if near else f"use {known}"
    for key, option in options.items():
        if option.get("required") and key not in value:
            yield name, f"has no {key!r}", f"add {key!r}"


def _label(item: Any, index: int) -> str:
    if isinstance(item, Mapping):
        for key in ("name", "match"):
            if isinstance(item.get(key), str):
                return str(item[key])
    return str(index)


def _kind_of(value: Any) -> str:
    for kind, words in (
        (bool, "true or false"),
        (str, "text"),
        (int, "a number"),
        (float, "a number"),
        (dict, "a dictionary"),
        (list, "a list"),
    ):
        if isinstance(value, kind):
            return words
    return "nothing" if value is None else type(value).__name__


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()):
        return int(value)
    return None


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    return words.get(str(value).strip().lower()) if isinstance(value, str) else None


def _converted(value: Any, option: Mapping[str, Any]) -> Any:
    kind = option.get("type", "str")
    if kind == "int":
        return _integer(value)
    if kind == "bool":
        return _boolean(value)
    if kind in ("str", "path"):
        return str(value)
    if kind == "list":
        element = {"type": option.get("elements", "str"), "options": option.get("options")}
        return [_converted(item, element) for item in value]
    if kind == "dict" and option.get("options"):
        known = {key: _converted(item, option["options"][key]) for key, item in value.items()}
        defaults = {key: item["default"] for key, item in option["options"].items() if "default" in item}
        return {**defaults, **known}
    return value
