"""Turns elements as they are written into the model: URIs, permissions, addresses, settings by match."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pollux.config.acceptors import (
    FOREIGN_PROTOCOLS,
    Acceptor,
    AcceptorSettings,
    Connector,
    ConnectorSettings,
    Endpoint,
)
from pollux.config.address_settings import AddressSetting
from pollux.config.addresses import AddressConfig, AddressShape
from pollux.config.amqp_connections import AmqpConnection
from pollux.config.extensions import SecuritySetting, SecuritySettingShape
from pollux.config.model import Feature
from pollux.config.uris import Uri, UriError, parse_uri, parse_uris, typed_settings, with_alternates
from pollux.message import RoutingType

if TYPE_CHECKING:
    from pollux.config.extensions import RoleMapping
    from pollux.config.reader import Parsed, Reader
    from pollux.config.schema import Entry
    from pollux.config.uris import Typed


class Converter:
    """The ``convert`` function of a :class:`~pollux.config.reader.Reader`, and what it found aside."""

    def __init__(self) -> None:
        self.role_mappings: tuple[RoleMapping, ...] = ()
        self._reader: Reader | None = None

    def attach(self, reader: Reader) -> None:
        """Give the reader that calls this converter."""
        self._reader = reader

    @property
    def reader(self) -> Reader:
        """The reader that calls this converter."""
        if self._reader is None:
            raise RuntimeError("the converter is not attached to a reader")
        return self._reader

    def __call__(self, entry: Entry, found: list[Parsed]) -> object:
        """Return the field's value (one item of it for a list), or None after noting why there is none."""
        return getattr(self, f"_{entry.field}")(found[0])

    def _filter(self, parsed: Parsed) -> str | None:
        return parsed.values.get("string")

    def _uri_errors(self, parsed: Parsed, what: str, error: UriError) -> None:
        for message in error.messages:
            self.reader.report.error(parsed.element, f"{what}: {message}")

    def _typed(self, parsed: Parsed, what: str, shape: type[Any], uri: Uri) -> Typed:
        """As :func:`typed_settings`; what is wrong is reported before it is raised, and warnings are."""
        try:
            typed = typed_settings(shape, uri.parameters, self.reader.plain, uri.replaced)
        except UriError as error:
            self._uri_errors(parsed, what, error)
            raise
        for message in typed.warnings:
            self.reader.report.warning(parsed.element, f"{what}: {message}")
        return typed

    def _acceptors(self, parsed: Parsed) -> Acceptor | None:
        if parsed.failed:
            return None
        name = parsed.values.get("name", "")
        what = f"acceptor {name!r}" if name else "acceptor"
        try:
            uri = parse_uri(parsed.values["uri"], also=("ws", "wss"))
        except UriError as error:
            # Its parameters may be wrong as well: who corrects the one wants to know of the other.
            self._uri_errors(parsed, what, error)
            with suppress(UriError):
                self._typed(parsed, what, AcceptorSettings, Uri("", "", 0, error.parameters))
            return None
        try:
            values, needs, _ = self._typed(parsed, what, AcceptorSettings, uri)
        except UriError:
            return None
        scheme = uri.scheme
        if scheme == "wss":
            if values.get("ssl_enabled") is False or values.get("ssl_allow_plain"):
                self.reader.report.error_at(parsed.line, f"{what}: wss:// is TLS; write ws:// for a port without it")
            scheme, values["ssl_enabled"] = "ws", True
        settings = self._without_foreign(parsed, what, AcceptorSettings(**values))
        if settings.protocols == ("CORE",):
            needs.append("core-protocol")
        if uri.scheme == "vm":
            needs.append("vm-acceptor")
        self.reader.features += [Feature(feature, "acceptor", parsed.line) for feature in dict.fromkeys(needs)]
        return Acceptor(
            name=name or f"{uri.host}:{uri.port}",
            scheme=scheme,
            host=uri.host,
            port=uri.port,
            settings=settings,
            line=parsed.line,
        )

    def _without_foreign(self, parsed: Parsed, what: str, settings: AcceptorSettings) -> AcceptorSettings:
        """Leave out the protocols that are not spoken here, and say so."""
        ours = tuple(name for name in settings.protocols if name not in FOREIGN_PROTOCOLS)
        if ours == settings.protocols:
            return settings
        foreign = [name for name in settings.protocols if name not in ours]
        self.reader.report.warning(
            parsed.element,
            f"{what}: {', '.join(foreign)} {'is' if len(foreign) == 1 else 'are'} not spoken here: its port serves"
            f" {', '.join(ours)} only",
        )
        return replace(settings, protocols=ours)

    def _connectors(self, parsed: Parsed) -> Connector | None:
        if parsed.failed:
            return None
        name = parsed.values.get("name")
        if name is None:
            self.reader.report.error(parsed.element, "<connector> needs the attribute 'name'")
            return None
        what = f"connector {name!r}"
        try:
            uris = parse_uris(parsed.values["uri"])
        except UriError as error:
            self._uri_errors(parsed, what, error)
            return None
        endpoints = []
        with suppress(UriError):
            for uri in uris:
                values, _, _ = self._typed(parsed, what, ConnectorSettings, uri)
                endpoints.append(Endpoint(uri.scheme, uri.host, uri.port, ConnectorSettings(**values)))
        return Connector(name, tuple(endpoints), parsed.line) if len(endpoints) == len(uris) else None

    def _broker_connections(self, parsed: Parsed) -> AmqpConnection | None:
        one = self.reader.build(parsed)
        if not isinstance(one, AmqpConnection):
            return None
        what = f"amqp-connection {one.name!r}"
        endpoints = []
        with suppress(UriError):
            for text in with_alternates(one.uri):
                try:
                    uri = parse_uri(text)
                except UriError as error:
                    self._uri_errors(parsed, what, error)
                    raise
                if uri.scheme == "vm":
                    self.reader.report.error(parsed.element, f"{what}: vm:// is no other broker: write tcp://host:port")
                    return None
                values, _, _ = self._typed(parsed, what, ConnectorSettings, uri)
                endpoints.append(Endpoint(uri.scheme, uri.host, uri.port, ConnectorSettings(**values)))
            return replace(one, endpoints=tuple(endpoints))
        return None

    def _security_settings(self, parsed: Parsed) -> tuple[SecuritySetting, ...]:
        self.role_mappings = parsed.values.get("role_mappings", ())
        return tuple(self._security_setting(shape) for shape in parsed.values.get("settings", ()))

    def _security_setting(self, shape: SecuritySettingShape) -> SecuritySetting:
        permissions: dict[str, frozenset[str]] = {}
        for permission in shape.permissions:
            if permission.type.value in permissions:
                self.reader.report.error_at(
                    permission.line, f"permission {permission.type.value!r} is given twice for {shape.match!r}"
                )
            permissions[permission.type.value] = frozenset(permission.roles)
        return SecuritySetting(shape.match, MappingProxyType(permissions), shape.line)

    def _address_settings(self, parsed: Parsed) -> AddressSetting | None:
        values: dict[str, Any] = dict(parsed.values)
        match = values.pop("match", None)
        if match is None:
            return None
        self.reader.report.setting_lines[match] = dict(parsed.lines)
        return AddressSetting(match, MappingProxyType(values), parsed.line)

    def _addresses(self, parsed: Parsed) -> AddressConfig | None:
        shape = self.reader.build(parsed)
        if not isinstance(shape, AddressShape):
            return None
        queues = []
        types = set()
        for routing_type, part in ((RoutingType.ANYCAST, shape.anycast), (RoutingType.MULTICAST, shape.multicast)):
            if part is not None:
                types.add(routing_type)
                queues += [queue.with_routing_type(routing_type) for queue in part.queues]
        return AddressConfig(shape.name, frozenset(types), tuple(queues), shape.line)
