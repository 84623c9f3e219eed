"""``pollux migrate``: an instance of Artemis becomes one of Pollux beside it, with a report of what is different."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from pollux.cli.output import CommandError, Result
from pollux.process.exits import EXIT_FAILED, EXIT_USAGE

if TYPE_CHECKING:
    from lxml import etree

    from pollux.config.migration import Login, Notes

_PRIVATE = 0o700


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("migrate", epilog="Example: pollux migrate /var/lib/artemis/broker --to /var/lib/pollux")(migrate)


def migrate(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="An instance of Artemis; it is only read.")],
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIRECTORY", help="The instance to make; else DIRECTORY-pollux, beside it."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only report: nothing is written.")] = False,
    cluster_password_file: Annotated[
        Path | None,
        typer.Option(help="cluster-password for a cluster that has none; else one is made. All members need the same."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make an instance of Pollux from one of Artemis.

    Its broker.xml, users, roles and certificates are taken over; Java's key stores become PEM. Messages stay where they
    are. Exit code 0: a broker starts on it; 1: decisions are left, which the report names; 2: nothing was made.
    """
    target = to or directory.with_name(f"{directory.absolute().name}-pollux")
    if not check and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CommandError(f"{target} exists already: name a directory that does not, with --to", EXIT_USAGE)
    if not check:
        target.parent.mkdir(parents=True, exist_ok=True)
    # Made whole, then renamed: an instance is there, or it is not.
    with tempfile.TemporaryDirectory(dir=None if check else target.parent, prefix=".pollux-migrate-") as made:
        unfinished = Path(made) / "instance"
        unfinished.mkdir(mode=_PRIVATE)
        instance = _Instance(directory.absolute(), unfinished, _password(cluster_password_file))
        try:
            instance.convert()
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}", EXIT_USAGE) from error
        starts = instance.judge(target)
        if not check:
            if target.exists():
                target.rmdir()
            unfinished.rename(target)
    _report(instance.notes, target, starts=starts, check=check).print(as_json=as_json)


def _password(file: Path | None) -> str:
    if file is None:
        return secrets.token_urlsafe(24)
    from pollux.cli.users import read_secret

    return read_secret(str(file))


class _Instance:
    """Reads one instance of Artemis and writes one of Pollux."""

    def __init__(self, source: Path, target: Path, cluster_password: str) -> None:
        from pollux.config.migration import Notes

        self.notes: Notes = Notes()
        self._source = source
        self._target = target / "etc"
        self._cluster_password = cluster_password
        #: Where each store came from, by the name it has now.
        self._stores: dict[str, Path] = {}

    def convert(self) -> None:
        """Write etc/ of the new instance. Raises CommandError, OSError."""
        from lxml import etree

        from pollux.config.migration import Migration, read_bootstrap, read_login

        etc = self._source / "etc"
        domain, url, web = "activemq", None, None
        if (etc / "bootstrap.xml").exists():
            domain, url, web = read_bootstrap(_tree(etc / "bootstrap.xml"), self.notes)
        broker_xml = self._located(url) if url else etc / "broker.xml"
        if not broker_xml.is_file():
            raise CommandError(f"{broker_xml}: there is no such file: give the directory of an instance", EXIT_USAGE)
        self._etc = broker_xml.parent
        root = _tree(broker_xml)
        self._include(root, broker_xml)
        self._target.mkdir(mode=_PRIVATE)
        login_config = etc / "login.config"
        text = login_config.read_text(encoding="utf-8") if login_config.exists() else f"{domain} {{ }};"
        login = read_login(text, domain, self.notes)
        migration = Migration(root, self.notes, store=self._store, cluster_password=self._cluster_password)
        migration.run(login, web)
        document: bytes = etree.tostring(root, encoding="UTF-8", xml_declaration=True)
        self._write("broker.xml", document + b"\n")
        if migration.uses_cluster_password:
            self._write("cluster-password", self._cluster_password.encode() + b"\n")
        self._users(login)
        if (self._source / "data").exists():
            self.notes.differs.append(
                f"messages stay in {self._source / 'data'}: let clients take them from Artemis before they move"
            )

    def judge(self, target: Path) -> bool:
        """Add what a start would say of the new instance; returns whether it starts."""
        import os

        from pollux.process.judgement import judge

        file = self._target / "broker.xml"
        judgement = judge(file, dict(os.environ))
        for problem in judgement.problems:
            text = problem.render().replace(str(self._target.parent), str(target))
            if problem in judgement.errors:
                self.notes.decisions.append(text)
            else:
                self.notes.differs.append(text)
        return not judgement.errors

    # -- files

    def _located(self, url: str) -> Path:
        """Return the file that a URL or a path of Artemis's configuration means."""
        text = self._plain(url)
        return self._source / "etc" / Path(unquote(urlsplit(text).path) if text.startswith("file:") else text)

    def _plain(self, text: str) -> str:
        import os

        from pollux.config.substitution import substitute

        etc = str(self._source / "etc")
        known = {"artemis.instance": str(self._source), "artemis.instance.etc": etc}
        return substitute(text, {**os.environ, **known})

    def _include(self, root: etree._Element, broker_xml: Path) -> None:
        """Put what it includes into the file."""
        from pollux.config.includes import IncludeError, expand

        try:
            included = expand(root, broker_xml, lambda path, _: _tree(path), self._plain)
        except IncludeError as error:
            raise CommandError(f"{broker_xml}: {error}", EXIT_USAGE) from error
        self.notes.differs += [f"what {path} holds is in broker.xml itself" for path in included]

    def _write(self, name: str, data: bytes, mode: int = 0o600) -> Path:
        path = self._target / name
        path.touch(mode=mode)
        path.write_bytes(data)
        return path

    def _store(self, path: str, password: str | None, what: str) -> str | None:
        """Copy a key or trust store, Java's as PEM; returns its new name, None where that has to be decided."""
        from pollux.config.java_stores import MAGIC, JavaStoreError, read_jks, to_pem

        try:
            old = self._etc / self._plain(path)
            data = old.read_bytes()
            if data.startswith(MAGIC):
                secret = self._plain(password or "")
                name = self._free(f"{old.stem}.pem", old)
                data = to_pem(read_jks(data, secret), secret)
                self.notes.generated.append(f"etc/{name} is {old} as PEM; keys in it are sealed with the same password")
            else:
                name = self._free(old.name, old)
        except (OSError, ValueError, JavaStoreError) as error:
            self.notes.decisions.append(f"{what} {path}: {error}")
            return None
        self._write(name, data)
        return name

    def _free(self, name: str, old: Path) -> str:
        """Return a name that no other store has."""
        stem, dot, suffix = name.rpartition(".")
        number = 1
        while self._stores.get(name, old) != old:
            number += 1
            name = f"{stem}-{number}{dot}{suffix}"
        self._stores[name] = old
        return name

    def _users(self, login: Login) -> None:
        """Passwords in clear text become verifiers; of those that Artemis hashed nobody can."""
        from pollux.config.properties import escape_key, escape_value, parse_properties
        from pollux.config.users import UsersError
        from pollux.config.users_editor import UsersEditor
        from pollux.config.verifiers import Verifier

        users, roles = self._etc / login.users, self._etc / login.roles
        lines = [f"{escape_key(each.key)} = {escape_value(each.value)}" for each in parse_properties(_text(roles))]
        new_roles = self._write(Path(login.roles).name, "".join(f"{line}\n" for line in lines).encode(), 0o640)
        editor = UsersEditor(self._target / Path(login.users).name, new_roles)
        converted, hashed = [], []
        for entry in parse_properties(_text(users)):
            if entry.value.startswith("ENC("):
                hashed.append(entry.key)
                continue
            try:
                editor.add(entry.key, Verifier.create(entry.value))
                converted.append(entry.key)
            except (ValueError, UsersError) as error:
                self.notes.decisions.append(f"user {entry.key!r} of {users}: {error}")
        if converted:
            self.notes.same.append(f"{len(converted)} users with their passwords, kept as SCRAM verifiers")
        self.notes.decisions += [
            f"user {name!r} needs a password, as Artemis kept only a hash of it: pollux user add {name}"
            for name in hashed
        ]
        if login.certificates and (self._etc / login.certificates).exists():
            self._write(Path(login.certificates).name, (self._etc / login.certificates).read_bytes(), 0o640)
            self.notes.same.append(f"users of certificates, in {Path(login.certificates).name}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _tree(path: Path) -> etree._Element:
    """Read an XML file with its comments, once it is known to be harmless."""
    from lxml import etree

    from pollux.config.document import DocumentError, read_document

    try:
        read_document(path)
    except DocumentError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    return etree.parse(path, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)).getroot()


def _report(notes: Notes, target: Path, *, starts: bool, check: bool) -> Result:
    value: dict[str, Any] = {
        "instance": None if check else str(target),
        "same": notes.same,
        "differs": notes.differs,
        "generated": notes.generated,
        "decisions": notes.decisions,
        "starts": starts,
    }
    titles = (("same", "the same"), ("differs", "different"), ("generated", "generated"))
    lines: list[str] = []
    for key, title in (*titles, ("decisions", "needs a decision")):
        if value[key]:
            lines += [f"{title}:", *(f"  {each}" for each in value[key])]
    place = "nothing was written" if check else f"{target} was made"
    lines.append(f"{place}; a broker {'starts' if starts else 'does not start'} on it")
    return Result(value, "\n".join(lines), 0 if starts and not notes.decisions else EXIT_FAILED)
