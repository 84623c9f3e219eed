"""List what the schema knows and Pollux does not provide: refused by name, with the reason. Pure data.

An element listed here stands for everything inside it. Attributes are written ``@name``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pollux.config.acceptors import HTTP_PARAMETERS, AcceptorSettings, ConnectorSettings, TransportShape
from pollux.config.address_settings import AddressSettingShape
from pollux.config.addresses import Divert
from pollux.config.amqp_connections import AmqpConnection
from pollux.config.bridges import Bridge
from pollux.config.extensions import Extensions, SecuritySettingsShape
from pollux.config.federation import AddressPolicy, Federation, QueuePolicy
from pollux.config.model import Configuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CLASSES = "Java classes cannot be loaded"
_PLUGINS = f"{_CLASSES}; plugins in Python are named in px:plugins (docs/plugins.md)"
_RBAC = "the management API checks the permissions manage and browse"
_TUNNEL = "tunnels are not provided"
_KERBEROS = "Kerberos is not provided"
_JSSE = "TLS is OpenSSL's; stores are PEM or PKCS12"

_CORE = {
    "system-property-prefix": "properties are given with -D and by the environment",
    "amqp-use-core-subscription-naming": "subscription queues are named as AMQP clients expect",
    "uuid-namespace": "temporary queues take the settings of their addresses",
    "temporary-queue-namespace": "temporary queues take the settings of their addresses",
    "management-address": "management requests (AMQP) go to activemq.management, and to no other address",
    "password-codec": "masked passwords use the key of px:security's key-file",
    "log-delegate-factory-class-name": _CLASSES,
    "lock-coordinators": "lock coordinators are not provided",
    "journal-retention-directory": "retention of journal files is not provided",
    "view-permission-method-match-pattern": _RBAC,
    "management-message-rbac": _RBAC,
    "management-rbac-prefix": _RBAC,
    "connector-services": _PLUGINS,
}

_ADDRESS_SETTING = {
    "config-delete-diverts": "a divert that is gone from the file is gone after a restart",
}

_TRANSPORT = {
    "keyStoreProvider": _JSSE,
    "keyStoreAlias": _JSSE,
    "trustStoreProvider": _JSSE,
    "sslContext": _JSSE,
    "sslAutoReload": "certificates are read again on reload (SIGHUP)",
    "trustManagerFactoryPlugin": _CLASSES,
    "sslKrb5Config": _KERBEROS,
    "krb5Config": _KERBEROS,
    "maskPassword": "write ENC(...) around a masked password",
    "passwordCodec": "masked passwords use the key of px:security's key-file",
    "host": "write the host before the question mark",
    "port": "write the port before the question mark",
}

_ACCEPTOR = _TRANSPORT | {
    "verifyHost": "clients are identified by certificate subject, not by host name",
    "saslLoginConfigScope": _KERBEROS,
    "securityDomain": "there is one set of users for all acceptors",
    "connectionTtlMin": "clients cannot ask for a ttl; connectionTtl sets it",
    "connectionTtlMax": "clients cannot ask for a ttl; connectionTtl sets it",
    "webSocketEncoderType": "WebSocket messages to clients are binary, which those of all three protocols read",
    "amqpUseModifiedForTransientDeliveryErrors": "outcomes follow the AMQP standard",
    "amqpTreatRejectAsUnmodifiedDeliveryFailed": "rejected AMQP messages become dead letters",
    "amqpDrainOnTransientDeliveryFailures": "producers are stopped by withholding credit",
    "subscriptionTemporaryQueuePrefix": "subscription queues are named as Artemis does",
}

_CONNECTOR = _TRANSPORT | {
    **dict.fromkeys(HTTP_PARAMETERS, _TUNNEL),
    "forceSSLParameters": _JSSE,
    "useDefaultSslContext": _JSSE,
    "socksEnabled": _TUNNEL,
    "socksHost": _TUNNEL,
    "socksPort": _TUNNEL,
    "socksVersion": _TUNNEL,
    "socksUsername": _TUNNEL,
    "socksPassword": _TUNNEL,
    "socksRemoteDNS": _TUNNEL,
    "writeBufferLowWaterMark": "it is set by px:limits",
    "writeBufferHighWaterMark": "it is set by px:limits",
    "handshake-timeout": "connect-timeout-millis bounds connecting as a whole",
}

_REFUSED: dict[type[Any], Mapping[str, str]] = {
    Configuration: _CORE,
    AddressSettingShape: _ADDRESS_SETTING,
    AcceptorSettings: _ACCEPTOR,
    ConnectorSettings: _CONNECTOR,
    TransportShape: {"@lock-coordinator": "lock coordinators are not provided"},
    SecuritySettingsShape: {"security-setting-plugin": _PLUGINS},
    Federation: {
        "transformer": _PLUGINS,
    },
    QueuePolicy: {"@transformer-ref": _PLUGINS},
    AddressPolicy: {"@transformer-ref": _PLUGINS},
    AmqpConnection: {
        "mirror": "a copy of a broker is kept by replication (docs/replication.md) or active-passive high availability"
        " (docs/active-passive.md), which acknowledge nothing before the copy has it",
        "peer": "waypoints of routers are not provided: let the router connect to this broker, with autoLinks",
        "federation": "write an upstream in <federations> (docs/federation.md) where both are Pollux, else a receiver",
        "bridge": "write a sender or a receiver for the same addresses",
        "@lock-coordinator": "lock coordinators are not provided",
    },
    Bridge: {"transformer": _PLUGINS, "transformer-class-name": _PLUGINS},
    Divert: {"transformer": _PLUGINS, "transformer-class-name": _PLUGINS},
    Extensions: {},
}


def refused_in(shape: type[Any]) -> Iterable[tuple[str, str]]:
    """Return the names refused inside the element read as ``shape``, with the reasons."""
    return _REFUSED.get(shape, {}).items()


_IN_LISTS = {
    "federations": {"@downstream-authorization": "whoever knows the cluster-password may be a downstream, or have one"},
}


def refused_in_list(wrapper: str) -> Mapping[str, str]:
    """Return the names refused inside an element that only lists others, with the reasons."""
    return _IN_LISTS.get(wrapper, {})
