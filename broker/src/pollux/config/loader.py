"""broker.xml to :class:`~pollux.config.model.Configuration`: the only part of this layer that reads files.

``check`` finds every problem at once; ``load`` raises them. Relative directories are taken from
the instance directory: the one given, else the parent of ``etc`` when the file is in a directory
of that name, else the file's own directory; never from where the process was started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pollux.config import cluster_uris, older_queues, qpidd_conf
from pollux.config.convert import Converter
from pollux.config.document import MAX_ELEMENTS, Document, DocumentError, Position, parse_document, read_document
from pollux.config.extensions import NAMESPACE, Extensions
from pollux.config.includes import IncludeError, expand
from pollux.config.kinds import Base
from pollux.config.masked import MaskingError, read_key
from pollux.config.model import Configuration, Feature
from pollux.config.nearest import did_you_mean
from pollux.config.plugins import with_plugins
from pollux.config.problems import ConfigError, Problem, Severity
from pollux.config.reader import DOCUMENTATION, Parsed, Reader, split_tag
from pollux.config.refused import refused_in
from pollux.config.report import Report, TooManyProblemsError
from pollux.config.rules import GENERAL_RULES, apply_rules
from pollux.config.rules_active_passive import ACTIVE_PASSIVE_RULES
from pollux.config.rules_amqp import CONNECTING_RULES
from pollux.config.rules_bridges import BRIDGING_RULES
from pollux.config.rules_cluster import CLUSTER_RULES
from pollux.config.rules_colocated import COLOCATED_RULES
from pollux.config.rules_database import DATABASE_RULES, in_database
from pollux.config.rules_ha import HA_RULES
from pollux.config.rules_network import NETWORK_RULES
from pollux.config.rules_routers import ROUTER_RULES
from pollux.config.rules_scale_down import SCALE_DOWN_RULES
from pollux.config.schema import table_of
from pollux.config.substitution import substitute

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lxml import etree

_RULES = (
    *(*GENERAL_RULES, *CLUSTER_RULES, *ROUTER_RULES, *BRIDGING_RULES, *CONNECTING_RULES, *HA_RULES),
    *(*SCALE_DOWN_RULES, *COLOCATED_RULES, *NETWORK_RULES, *DATABASE_RULES),
    *ACTIVE_PASSIVE_RULES,
)
_SERVER = "urn:activemq"
_CORE = "urn:activemq:core"
_JMS = "urn:activemq:jms"
#: Where Artemis's elements may be; the empty namespace because documentation and older files leave it out.
_ARTEMIS = frozenset({_SERVER, _CORE, ""})
_PX = frozenset({NAMESPACE})
#: Files people have beside broker.xml, by namespace and root element.
_OTHER_FILES = {
    ("", "beans"): "; this seems to be ActiveMQ Classic's activemq.xml, which is written in other terms",
    ("http://activemq.org/schema", "broker"): "; this seems to be Artemis's bootstrap.xml: give broker.xml",
    ("", "broker"): "; this seems to be of another broker",
    (_CORE, "core"): "; put <core> inside it",
    ("", "core"): "; put <core> inside it",
}


class _Loader:
    """Read one document."""

    def __init__(
        self, document: Document, properties: Mapping[str, str], instance: Path, etc: Path, qpidd: Path | None
    ) -> None:
        self.document = document
        self.qpidd = qpidd
        self.report = Report(document.file, document.positions)
        converter = Converter()
        self.converter = converter
        self.reader = Reader(self.report, properties, {Base.INSTANCE: instance, Base.ETC: etc}, converter)
        converter.attach(self.reader)
        self.included: tuple[Path, ...] = ()
        #: The elements <jms>, beside <core>.
        self.jms: list[etree._Element] = []

    def _resolve(self, text: str) -> str:
        return substitute(text, self.reader.properties)

    def include(self, path: Path, element: etree._Element) -> etree._Element:
        """Read a file that ``element`` includes, and note where its elements are."""
        try:
            document = read_document(path)
        except DocumentError as error:
            if error.problem.line:
                raise
            raise IncludeError(element, f"xi:include of {path}: {error.problem.message}") from error
        line = self.report.line_of(element)
        self.document.positions.update(
            {each: Position(one.line, one.column, str(path), line) for each, one in document.positions.items()}
        )
        if len(self.document.positions) > MAX_ELEMENTS:
            raise IncludeError(element, f"xi:include: more than {MAX_ELEMENTS} elements")
        return document.root

    def load(self) -> Configuration | None:
        """Return the configuration, complete only when nothing was reported."""
        root = self.document.root
        try:
            self.included = tuple(expand(root, Path(self.document.file), self.include, self._resolve))
        except IncludeError as error:
            self.report.error(error.element, str(error))
            return None
        except DocumentError as error:
            self.report.add(error.problem)
            return None
        namespace, name = split_tag(root)
        if name != "configuration" or namespace not in _ARTEMIS:
            hint = _OTHER_FILES.get((namespace, name)) or _OTHER_FILES.get(("", name), "")
            self.report.error(
                root, f'the root element is <{name[:60]}>: expected is <configuration xmlns="{_SERVER}">{hint}'
            )
            return None
        cores, extensions = self._sort(root)
        parts = self._extensions(extensions)
        if not cores:
            self.report.error(root, f'<configuration> needs the element <core xmlns="{_CORE}">')
            return None
        for extra in cores[1:]:
            first = self.report.line_of(cores[0])
            self.report.error(extra, f"<core> is given twice in <configuration>; first on line {first}")
        return self._core(cores[0], parts)

    def _sort(self, root: etree._Element) -> tuple[list[etree._Element], dict[str, etree._Element]]:
        """Return the core elements, and Pollux's own elements beside or inside them by name."""
        cores: list[etree._Element] = []
        extensions: dict[str, etree._Element] = {}
        for child in root:
            namespace, name = split_tag(child)
            if namespace == NAMESPACE:
                self._extension(child, name, extensions)
            elif namespace in _ARTEMIS and name == "core":
                cores.append(child)
            elif name == "jms" and namespace in {*_ARTEMIS, _JMS}:
                self.jms.append(child)
            else:
                near = did_you_mean(name, ["core", *table_of(Extensions).elements])
                self.report.error(child, f"unknown element <{name[:60]}> in <configuration>{near}")
        for core in cores:
            for child in list(core):
                namespace, name = split_tag(child)
                if namespace == NAMESPACE:
                    self._extension(child, name, extensions)
                    core.remove(child)
        return cores, extensions

    def _extension(self, element: etree._Element, name: str, extensions: dict[str, etree._Element]) -> None:
        refused = dict(refused_in(Extensions))
        known = table_of(Extensions).elements
        if name in refused:
            self.report.error(element, f"<px:{name}> is not supported: {refused[name]}; {DOCUMENTATION}")
        elif name not in known:
            self.report.error(element, f"unknown element <px:{name[:60]}>{did_you_mean(name, known)}")
        elif name in extensions:
            first = self.report.line_of(extensions[name])
            self.report.error(element, f"<px:{name}> is given twice; first on line {first}")
        else:
            extensions[name] = element

    def _extensions(self, elements: dict[str, etree._Element]) -> dict[str, Any]:
        """Read Pollux's own elements; security first because it holds the key of masked passwords."""
        parts: dict[str, Any] = {}
        for entry in table_of(Extensions).entries:
            shape = entry.nested
            if shape is None:
                continue
            element = elements.get(entry.name)
            if element is None:
                parts[entry.field] = shape(**self.reader.defaults(shape))
                continue
            parsed = self.reader.read(element, shape, f"px:{entry.name}", _PX)
            part = self.reader.build(parsed)
            parts[entry.field] = part if part is not None else shape(**self.reader.defaults(shape))
            if entry.field == "security" and part is not None and part.key_file is not None:
                try:
                    self.reader.key = read_key(part.key_file)
                except MaskingError as error:
                    self.report.error_at(parsed.lines.get("key_file", parsed.line), str(error))
        parts["plugins"] = parts["plugins"].plugins
        return parts

    def _core(self, core: etree._Element, parts: dict[str, Any]) -> Configuration | None:
        mask = next((child for child in core if split_tag(child)[1] == "mask-password"), None)
        self.reader.mask_all = mask is not None and (mask.text or "").strip() in ("true", "1")
        cluster_uris.expand(core, self.report)
        older_queues.expand(core, self.jms, self.report)
        parsed: Parsed = self.reader.read(core, Configuration, "core", _ARTEMIS)
        configuration = self.reader.build(parsed)
        if not isinstance(configuration, Configuration):
            return None
        configuration = replace(
            configuration,
            **parts,
            role_mappings=self.converter.role_mappings,
            path=Path(self.document.file),
            included=self.included,
            features=tuple(sorted(self.reader.features, key=lambda feature: feature.line)),
        )
        self.report.lines = parsed.lines
        configuration = with_plugins(self._active_passive(configuration), self.report)
        apply_rules(configuration, self.report, _RULES)
        return in_database(configuration)

    def _active_passive(self, configuration: Configuration) -> Configuration:
        """Return the configuration with what qpidd.conf says, and what follows from the cluster's own user."""
        features = list(configuration.features)
        if self.qpidd is not None:
            options = qpidd_conf.read(self.qpidd, self.reader.plain)
            for problem in options.problems:
                self.report.add(problem)
            if options.port is not None and all(one.port != options.port for one in configuration.acceptors):
                options.refuse(options.lines["port"], f"port {options.port} is no acceptor's in {self.report.file}")
                self.report.add(options.problems[-1])
            policy, own = options.policy(), configuration.high_availability
            if own.active_passive is not None:
                line = own.active_passive.line
                self.report.error_at(line, f"<px:active-passive> and {self.qpidd} are given: remove one of them")
            configuration = replace(configuration, high_availability=replace(own, active_passive=policy))
            if policy.ha_cluster:
                features.append(Feature("active-passive", "ha-cluster", policy.line_of("ha-cluster"), policy.source))
        given = configuration.queue_replication
        if given is None:
            return configuration
        if given.ha_username and given.ha_password is not None:
            configuration = replace(configuration, cluster_user=given.ha_username, cluster_password=given.ha_password)
        return replace(configuration, features=tuple(features))


def _instance_of(etc: Path, properties: Mapping[str, str]) -> Path:
    for name in ("pollux.instance", "artemis.instance"):
        if properties.get(name):
            return Path(properties[name]).absolute()
    return etc.parent if etc.name == "etc" else etc


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems in the order of the file; those without a place are the last."""
    return sorted(problems, key=lambda problem: (problem.line == 0, problem.line, problem.column))


def examine(
    path: str | Path,
    properties: Mapping[str, str] | None = None,
    *,
    instance: Path | None = None,
    data: bytes | None = None,
    qpidd: Path | None = None,
) -> tuple[Configuration | None, list[Problem]]:
    """Return what can be made of a file (``data`` instead of its content), and every problem it has.

    With an error among the problems the configuration is not to be used, but may be looked at for more of them; it is
    None where nothing could be made of the file. Never raises for what the file contains or that it is missing.
    """
    path = Path(path)
    file = str(path)
    given = dict(os.environ if properties is None else properties)
    etc = path.absolute().parent
    root = instance.absolute() if instance else _instance_of(etc, given)
    for prefix in ("pollux", "artemis"):
        given.setdefault(f"{prefix}.instance", str(root))
        given.setdefault(f"{prefix}.instance.etc", str(etc))
    try:
        document = read_document(path) if data is None else parse_document(file, data)
    except DocumentError as error:
        return None, [error.problem]
    loader = _Loader(document, given, root, etc, qpidd)
    try:
        configuration = loader.load()
    except TooManyProblemsError:
        configuration = None
    problems = in_order(loader.report.problems)
    if configuration is not None:
        configuration = replace(configuration, warnings=tuple(problems))
    return configuration, problems


def check(
    path: str | Path,
    properties: Mapping[str, str] | None = None,
    *,
    instance: Path | None = None,
    qpidd: Path | None = None,
) -> list[Problem]:
    """Return every problem of the file at ``path``, errors and warnings, in the order of its lines.

    ``properties`` are what ``${name}`` may stand for (default: the environment). Never raises for
    what the file contains or that it is missing.
    """
    return examine(path, properties, instance=instance, qpidd=qpidd)[1]


def load(
    path: str | Path,
    properties: Mapping[str, str] | None = None,
    *,
    instance: Path | None = None,
    qpidd: Path | None = None,
) -> Configuration:
    """Return the configuration in the file at ``path``; raise :class:`ConfigError` with all problems it has.

    ``properties`` are what ``${name}`` may stand for (default: the environment). ``instance`` is the directory that
    relative directories are taken from. ``qpidd`` is a qpidd.conf that says the rest of an
    active-passive cluster. Warnings are in ``Configuration.warnings``.
    """
    return _result(*examine(path, properties, instance=instance, qpidd=qpidd))


def loads(
    text: str | bytes,
    properties: Mapping[str, str] | None = None,
    *,
    file: str = "broker.xml",
    instance: Path | None = None,
    qpidd: Path | None = None,
) -> Configuration:
    """Like :func:`load`, from a text; ``file`` is what problems call it and where relative paths start."""
    data = text.encode() if isinstance(text, str) else text
    return _result(*examine(file, properties, instance=instance, qpidd=qpidd, data=data))


def _result(configuration: Configuration | None, problems: list[Problem]) -> Configuration:
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors or configuration is None:
        raise ConfigError(errors)
    return configuration
