"""Turn an Artemis instance's broker.xml, bootstrap.xml and login.config into what Pollux reads. Pure but for callbacks.

Only what has to be different is changed: everything else stays as it was written, comments included. Whether the
result can be used is judged afterwards as any other file is; nothing of security or durability is left out here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lxml import etree

from pollux.config.acceptors import FOREIGN_PROTOCOLS, PROTOCOLS
from pollux.config.extensions import NAMESPACE
from pollux.config.model import Configuration
from pollux.config.refused import refused_in

#: Gives the name that a key store has from now on, from the path and password that a URI has and what it is for.
Store = Callable[[str, str | None, str], str | None]

_CORE = "urn:activemq:core"
_DIRECTORIES = ("bindings", "journal", "large-messages", "paging", "node-manager-lock")
_DEFAULT_PASSWORD = "CHANGE ME!!"  # noqa: S105  (Artemis's default)
#: Of what Pollux refuses, what it has in another way: left out, and said.
_REPLACED = {
    "management-address": "the HTTP API of the management port takes the place of requests by messages",
    "management-notification-address": "the log, the audit trail and the metrics tell what notifications told",
    "log-delegate-factory-class-name": "the log is set by px:logging",
}


@dataclass
class Notes:
    """Hold what is told of a migration, a line each."""

    same: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    generated: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)


@dataclass
class Login:
    """Hold what login.config says, as far as Pollux has it. File names are as they were written."""

    users: str = "artemis-users.properties"
    roles: str = "artemis-roles.properties"
    certificates: str | None = None
    guest: str | None = None
    guest_roles: str | None = None


def name_of(element: etree._Element) -> str:
    """Return an element's name without its namespace; empty for a comment."""
    return etree.QName(element).localname if isinstance(element.tag, str) else ""


def child_of(parent: etree._Element, name: str) -> etree._Element | None:
    """Return the first child of that name, in whatever namespace."""
    return next((child for child in parent if name_of(child) == name), None)


class Migration:
    """Change one broker.xml. ``cluster_password`` is used where there is a cluster and none was set."""

    def __init__(self, root: etree._Element, notes: Notes, *, store: Store, cluster_password: str) -> None:
        self.root = root
        self.notes = notes
        self._store = store
        self._cluster_password = cluster_password
        self.uses_cluster_password = False

    def run(self, login: Login, web: str | None) -> None:
        """Do all of it. ``web`` is the address of the console, from bootstrap.xml."""
        core = child_of(self.root, "core")
        if core is None:
            return
        self._replaced(core)
        self._directories(core)
        self._cluster(core)
        for kind in ("acceptors", "connectors", "broker-connections"):
            listed = child_of(core, kind)
            for element in list(listed) if listed is not None else ():
                if name_of(element) in (kind[:-1], "amqp-connection"):
                    self._uri(element, pair=self._is_pair(core))
        self._others(core)
        self._security(login)
        self._management(web)
        self._counts(core)

    @staticmethod
    def _is_pair(core: etree._Element) -> bool:
        policy = child_of(core, "ha-policy")
        return policy is not None and child_of(policy, "replication") is not None

    def _leave_out(self, element: etree._Element, why: str) -> None:
        parent = element.getparent()
        if parent is not None:
            self.notes.differs.append(f"<{name_of(element)}> is left out: {why}")
            _remove(element)

    def _replaced(self, core: etree._Element) -> None:
        refused = dict(refused_in(Configuration))
        for element in list(core):
            name = name_of(element)
            if name in _REPLACED and name in refused:
                self._leave_out(element, _REPLACED[name])

    def _directories(self, core: etree._Element) -> None:
        """Never the same directory as Artemis's: its files are of another form."""
        for kind in _DIRECTORIES:
            element = child_of(core, f"{kind}-directory")
            if element is None or not (element.text or "").strip().startswith(("/", "$")):
                continue
            old = (element.text or "").strip()
            element.text = f"{old.rstrip('/')}-pollux"
            self.notes.differs.append(f"{kind}-directory is {element.text}, not {old}, which holds Artemis's files")

    def _cluster(self, core: etree._Element) -> None:
        listed = child_of(core, "cluster-connections")
        if listed is None or not any(name_of(child) for child in listed):
            return
        element = child_of(core, "cluster-password")
        if element is not None and (element.text or "").strip() not in ("", _DEFAULT_PASSWORD):
            return
        if element is None:
            element = etree.Element(_tag(core, "cluster-password"))
            element.tail = "\n      "
            core.insert(0, element)
        element.text = self._cluster_password
        self.uses_cluster_password = True
        self.notes.generated.append(
            "cluster-password, also in etc/cluster-password: all members need the same one (--cluster-password-file)"
        )

    # -- URIs

    def _uri(self, element: etree._Element, *, pair: bool) -> None:
        attribute = name_of(element) == "amqp-connection"
        text, number_sign, others = (element.get("uri", "") if attribute else element.text or "").strip().partition("#")
        what = f"{name_of(element)} {element.get('name', '')!r}"
        if text.lower().startswith("vm:"):
            self.notes.differs.append(f"{what} is left out: nothing else runs in the broker's process")
            _remove(element)
            return
        head, mark, query = text.partition("?")
        parts = [part.partition("=") for part in re.split("[;&]", query) if part.strip()] if mark else []
        values = {name.strip(): unquote(value.strip()) for name, _, value in parts}
        protocols = [each.strip() for each in values.get("protocols", values.get("protocol", "")).split(",")]
        theirs = {*FOREIGN_PROTOCOLS} if pair else {*FOREIGN_PROTOCOLS, "CORE"}
        if name_of(element) == "acceptor" and protocols != [""] and {*protocols} <= theirs:
            ours = ", ".join(each for each in PROTOCOLS if each not in theirs)
            self.notes.differs.append(
                f"{what} is left out: its clients speak {', '.join(protocols)}; give them a library for one of {ours}"
            )
            _remove(element)
            return
        changed: dict[str, str | None] = {}
        files = (("keyStorePath", "keyStorePassword"), ("trustStorePath", "trustStorePassword"), ("crlPath", ""))
        for path, password in files:
            if path in values:
                name = self._store(values[path], values.get(password), f"{what}: {path}")
                if name is not None:
                    changed |= {path: name, path.replace("Path", "Type"): None, path.replace("Path", "Provider"): None}
        if changed:
            kept = [
                f"{name.strip()}={quote(changed[name.strip()] or '', safe='/.-_,')}"
                if name.strip() in changed
                else f"{name}={value}"
                for name, _, value in parts
                if changed.get(name.strip(), "") is not None
            ]
            written = f"{head}?{';'.join(kept)}{number_sign}{others}"
            if attribute:
                element.set("uri", written)
            else:
                element.text = written

    # -- Pollux's own

    def _own(self, name: str, values: dict[str, str]) -> None:
        part = etree.SubElement(self.root, f"{{{NAMESPACE}}}{name}", nsmap={"px": NAMESPACE})
        part.text, part.tail = "\n    ", "\n"
        for key, value in values.items():
            inner = etree.SubElement(part, f"{{{NAMESPACE}}}{key}")
            inner.text, inner.tail = value, "\n    "
        part[-1].tail = "\n  "

    def _security(self, login: Login) -> None:
        values = {}
        if login.users != Login.users:
            values["users-file"] = Path(login.users).name
        if login.roles != Login.roles:
            values["roles-file"] = Path(login.roles).name
        if login.certificates:
            values["certificate-users-file"] = Path(login.certificates).name
        if login.guest:
            values["anonymous-user"] = login.guest
            if login.guest_roles:
                values["anonymous-roles"] = login.guest_roles
            self.notes.differs.append(
                f"clients that do not log in are the user {login.guest!r}; wrong passwords are refused, also beside it"
            )
        if values:
            self._own("security", values)

    def _management(self, web: str | None) -> None:
        if web is None:
            return
        parts = urlsplit(web)
        try:
            port = parts.port or 8161
        except ValueError:
            port = 8161
        host = parts.hostname or "localhost"
        if parts.scheme == "https":
            host = "127.0.0.1"
            self.notes.decisions.append(
                f"the console of {web} had TLS: management listens on {host}:{port} until px:management has"
                " ssl-enabled and a key-store-path"
            )
        self._own("management", {"host": "127.0.0.1" if host == "localhost" else host, "port": str(port)})
        self.notes.differs.append(f"{web} was the console with Jolokia; the HTTP API and metrics are there now")

    def _others(self, core: etree._Element) -> None:
        """Say what is not the same of the ways to other brokers."""
        for wrapper, kind in (("bridges", "bridge"), ("federations", "federation")):
            listed = child_of(core, wrapper)
            for element in listed if listed is not None else ():
                if name_of(element) == kind:
                    self.notes.differs.append(
                        f"{kind} {element.get('name', '')!r}: the other broker has to be Pollux, and user and password"
                        f" are its cluster-user and cluster-password (docs/{wrapper if kind == 'bridge' else kind}.md)"
                    )

    def _counts(self, core: etree._Element) -> None:
        for listed in core:
            if name_of(listed) in ("acceptors", "security-settings", "address-settings", "addresses"):
                count = sum(bool(name_of(child)) for child in listed)
                self.notes.same.append(f"{count} in <{name_of(listed)}>")


def _tag(beside: etree._Element, name: str) -> str:
    namespace = etree.QName(beside).namespace
    return f"{{{namespace}}}{name}" if namespace else name


def _remove(element: etree._Element) -> None:
    """Take an element out, and leave the white space behind it."""
    parent = element.getparent()
    if parent is None:
        return
    before = element.getprevious()
    if before is not None:
        before.tail = (before.tail or "") + (element.tail or "").strip()
    parent.remove(element)


# -- login.config and bootstrap.xml

_DOMAIN = re.compile(r"([\w.-]+)\s*\{(.*?)\}\s*;", re.DOTALL)
_MODULE = re.compile(
    r"([\w.$]+)\s+(?:required|requisite|sufficient|optional)((?:\s+[\w.-]+\s*=\s*(?:\"[^\"]*\"|[^\s;]+))*)\s*;",
    re.IGNORECASE,
)
_OPTION = re.compile(r"([\w.-]+)\s*=\s*(?:\"([^\"]*)\"|([^\s;]+))")
_COMMENT = re.compile(r"/\*.*?\*/|^\s*//[^\n]*", re.DOTALL | re.MULTILINE)


def read_login(text: str, domain: str, notes: Notes) -> Login:
    """Read the modules of a domain of a JAAS login.config; what Pollux has not is a decision."""
    domains = dict(_DOMAIN.findall(_COMMENT.sub("", text)))
    login = Login()
    if domain not in domains:
        notes.decisions.append(f"login.config has no domain {domain!r}: who may log in has to be said with pollux user")
        return login
    for name, options in _MODULE.findall(domains[domain]):
        given = {key: quoted or plain for key, quoted, plain in _OPTION.findall(options)}
        kind = name.rpartition(".")[2]
        if kind == "PropertiesLoginModule":
            login.users = given.get("org.apache.activemq.jaas.properties.user", login.users)
            login.roles = given.get("org.apache.activemq.jaas.properties.role", login.roles)
        elif kind == "TextFileCertificateLoginModule":
            login.certificates = given.get("org.apache.activemq.jaas.textfiledn.user", "cert-users.properties")
            roles = given.get("org.apache.activemq.jaas.textfiledn.role")
            if roles is not None and roles != login.roles:
                notes.decisions.append(f"roles of certificates are in {roles}: add them to {login.roles}, there is one")
        elif kind == "GuestLoginModule":
            login.guest = given.get("org.apache.activemq.jaas.guest.user", "guest")
            login.guest_roles = given.get("org.apache.activemq.jaas.guest.role", "guests")
        else:
            notes.decisions.append(f"login.config: {kind} is not provided: its users have to be added with pollux user")
    return login


def read_bootstrap(root: etree._Element, notes: Notes) -> tuple[str, str | None, str | None]:
    """Return the JAAS domain, where broker.xml is (a URL or path) and the console's address, from bootstrap.xml."""
    domain, broker_xml, web = "activemq", None, None
    for element in root:
        name = name_of(element)
        if name == "jaas-security":
            domain = element.get("domain", domain)
            if element.get("certificate-domain"):
                notes.decisions.append(
                    f"bootstrap.xml has the certificate-domain {element.get('certificate-domain')!r}: name its file of"
                    " users in <px:certificate-users-file>"
                )
        elif name in ("basic-security", "security-manager"):
            notes.decisions.append(f"bootstrap.xml has <{name}>: its users have to be added with pollux user")
        elif name == "server":
            broker_xml = element.get("configuration")
        elif name == "web":
            binding = child_of(element, "binding")
            web = element.get("bind") or (binding.get("uri") if binding is not None else None)
    return domain, broker_xml, web
