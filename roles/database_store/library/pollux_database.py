#!/usr/bin/python
"""Makes a broker's database, its user and the schema in it. Standard library and psql only."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_database
short_description: The database of a broker's store, and its user
description:
  - Runs psql as the server's administrator, over the local socket. Statements go to its standard input; the server is
    sent a verifier of the password (SCRAM-SHA-256), never the password.
  - A server that follows another one is left alone, because it has what that one has.
options:
  name: {description: The database., type: str, required: true}
  user: {description: The user; its schema has its name., type: str, required: true}
  password: {description: Its password., type: str, required: true}
  port: {description: The port of the server., type: int, default: 5432}
  socket: {description: The directory of its socket, psql's own default if empty., type: path, default: ""}
author: Pollux
"""
RETURN = r"""
done: {description: What was done, in words., type: list, returned: always}
standby: {description: Whether the server follows another one., type: bool, returned: always}
"""
TIMEOUT = 60
ITERATIONS = 4096
#: The user may log in, and nothing else.
ATTRIBUTES = ("NOSUPERUSER", "NOCREATEDB", "NOCREATEROLE", "NOREPLICATION", "NOBYPASSRLS", "LOGIN")
VERIFIER = re.compile(r"SCRAM-SHA-256\$(\d+):([^$]+)\$([^:]+):(.+)")
OLDEST = 15


class DatabaseError(Exception):
    """Say what the server said."""


def verifier_of(password: str, salt: bytes, iterations: int = ITERATIONS) -> str:
    """Return what a server keeps of a password (RFC 5802, RFC 7677)."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    parts = [base64.b64encode(part).decode() for part in (salt, client, server)]
    return f"SCRAM-SHA-256${iterations}:{parts[0]}${parts[1]}:{parts[2]}"


def fits(password: str, kept: str) -> bool:
    """Tell whether a server keeps this password."""
    found = VERIFIER.fullmatch(kept)
    if found is None:
        return False
    return hmac.compare_digest(verifier_of(password, base64.b64decode(found[2]), int(found[1])), kept)


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """Return a text as SQL has it."""
    return "'" + value.replace("'", "''") + "'"


class Server:
    """A server, reached by psql."""

    def __init__(self, port: int, socket: str = "") -> None:
        self._place = {"PGPORT": str(port), **({"PGHOST": socket} if socket else {})}

    def ask(self, statements: str, database: str = "postgres") -> list[list[str]]:
        """Carry out statements; return the rows. Raises DatabaseError."""
        # Nothing that the administrator has set for himself.
        environment = {"PATH": os.environ.get("PATH", ""), "LANG": "C", **self._place}
        words = ["psql", "-X", "-A", "-t", "-q", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", "-"]
        try:
            done = subprocess.run(
                words, input=statements, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environment
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise DatabaseError(
                f"psql: {type(error).__name__}: {getattr(error, 'strerror', '') or 'no answer'}"
            ) from None
        if done.returncode != 0:
            # The first line only: those that follow repeat the statement.
            said = next((line for line in done.stderr.splitlines() if "error:" in line.lower()), done.stderr.strip())
            raise DatabaseError(re.sub(r"SCRAM-SHA-256\$\S+", "(a verifier)", said)[:500])
        return [line.split("\t") for line in done.stdout.splitlines() if line]

    def one(self, statement: str, database: str = "postgres") -> str:
        """Return the one value that a statement asks for, empty for none."""
        rows = self.ask(statement, database)
        return rows[0][0] if rows else ""


def quietly(statement: str) -> str:
    """Return a statement that the server does not log, whatever else it logs. Each line is a transaction of its own."""
    lines = (
        "SET log_statement = 'none';",
        "SET log_min_duration_statement = -1;",
        "SET log_min_error_statement = 'panic';",
    )
    return "\n".join((*lines, statement))


def lacking(server: Server, params: dict[str, Any], salt: bytes) -> list[tuple[str, str, str]]:
    """Return what has to be done: words, the database it is done in, the statement."""
    user, name, password = params["user"], params["name"], params["password"]
    todo: list[tuple[str, str, str]] = []
    flags = "rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls OR NOT rolcanlogin"
    role = f"SELECT {flags}, coalesce(rolpassword, '-') FROM pg_authid WHERE rolname = {text(user)};"  # noqa: S608 (quoted)
    rows = server.ask(role)
    if not rows:
        todo.append((f"made the user {user}", "postgres", f"CREATE ROLE {quoted(user)} {' '.join(ATTRIBUTES)};"))
    elif rows[0][0] == "t":
        todo.append((f"took rights from {user}", "postgres", f"ALTER ROLE {quoted(user)} {' '.join(ATTRIBUTES)};"))
    if not rows or not fits(password, rows[0][1]):
        statement = f"ALTER ROLE {quoted(user)} PASSWORD {text(verifier_of(password, salt))};"
        todo.append((f"set the password of {user}", "postgres", statement))
    database = f"SELECT 1 FROM pg_database WHERE datname = {text(name)};"  # noqa: S608 (quoted)
    there = server.one(database) == "1"
    if not there:
        statement = f"CREATE DATABASE {quoted(name)} ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0;"
        todo.append((f"made the database {name}", "postgres", statement))
    has = f"has_database_privilege({text(user)}, {text(name)}, 'CONNECT')"
    public = (
        "EXISTS (SELECT FROM pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba))) AS one"
        f" WHERE datname = {text(name)} AND one.grantee = 0)"
    )
    if not there or not rows or server.one(f"SELECT {has} AND NOT {public};") != "t":
        place = f"ON DATABASE {quoted(name)}"
        statement = f"REVOKE ALL {place} FROM PUBLIC; GRANT CONNECT {place} TO {quoted(user)};"
        todo.append((f"let {user} and nobody else into {name}", "postgres", statement))
    owner = f"nspname = {text(user)} AND pg_get_userbyid(nspowner) = {text(user)}"
    schema = f"SELECT count(*) FROM pg_namespace WHERE {owner};"  # noqa: S608 (quoted)
    if not there or not rows or server.one(schema, name) != "1":
        statement = f"CREATE SCHEMA IF NOT EXISTS {quoted(user)}; ALTER SCHEMA {quoted(user)} OWNER TO {quoted(user)};"
        todo.append((f"made the schema {user} in {name}", name, statement))
    joined = "pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase JOIN pg_roles r ON r.oid = s.setrole"
    those = (
        f"d.datname = {text(name)} AND r.rolname = {text(user)} AND {text(f'search_path={user}')} = ANY (s.setconfig)"
    )
    setting = f"SELECT 1 FROM {joined} WHERE {those};"  # noqa: S608 (quoted)
    if not there or not rows or server.one(setting) != "1":
        statement = f"ALTER ROLE {quoted(user)} IN DATABASE {quoted(name)} SET search_path = {quoted(user)};"
        todo.append((f"had {user} find its schema in {name}", "postgres", statement))
    return todo


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "password": {"type": "str", "required": True, "no_log": True},
            "port": {"type": "int", "default": 5432},
            "socket": {"type": "path", "default": ""},
        },
        supports_check_mode=True,
    )
    server = Server(module.params["port"], module.params["socket"])
    name = module.params["name"]
    try:
        version = int(server.one("SHOW server_version_num;") or 0) // 10000
        if version < OLDEST:
            module.fail_json(msg=f"the server is PostgreSQL {version}: a store needs {OLDEST} or newer")
        if server.one("SELECT pg_is_in_recovery();") == "t":
            module.exit_json(changed=False, done=[], standby=True)
        todo = lacking(server, module.params, secrets.token_bytes(16))
        if not module.check_mode:
            for _, database, statement in todo:
                server.ask(quietly(statement), database)
    except DatabaseError as error:
        module.fail_json(msg=f"database {name} cannot be set up: {error}")
    module.exit_json(changed=bool(todo), done=[words for words, _, _ in todo], standby=False)


if __name__ == "__main__":
    main()
