"""List what tunes a mechanism of Artemis that Pollux does not have, so that nothing is lost: warned about by name.

Nothing of security or durability is here: what changes who may do something, or what a confirmation means, is honoured
or refused (:mod:`pollux.config.refused`). Pure data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pollux.config.acceptors import HTTP_PARAMETERS, AcceptorSettings, ConnectorSettings
from pollux.config.address_settings import AddressSettingShape
from pollux.config.addresses import Divert
from pollux.config.clusters import ConnectionRouter
from pollux.config.model import Configuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_JVM = "it concerns the Java virtual machine"
_THREADS = "Pollux runs on one event loop and has no thread pools to size"
_JMX = "there is no JMX; management is HTTP (px:management)"
_MIRROR = "mirroring is not provided"
_COUNTERS = "message counters are not kept; use the metrics"
_OLD_TCP = "the transport is asyncio on uvloop, which has no such choice"
_HTTP = "only clients of Artemis's core protocol go through HTTP; others have WebSocket, on the same port"
_METRICS = "Prometheus metrics are built in, at /metrics of px:management"
_OPENWIRE = "it concerns OpenWire, which Pollux does not speak"

_CORE = {
    "internal-naming-prefix": "Pollux keeps its own state outside of addresses",
    "resolve-protocols": "an acceptor's protocols parameter says what it speaks",
    "scheduled-thread-pool-max-size": _THREADS,
    "thread-pool-max-size": _THREADS,
    "jmx-management-enabled": _JMX,
    "jmx-notification-enabled": _JMX,
    "jmx-domain": _JMX,
    "jmx-use-broker-name": _JMX,
    "message-counter-enabled": _COUNTERS,
    "message-counter-sample-period": _COUNTERS,
    "message-counter-max-day-history": _COUNTERS,
    "message-expiry-thread-priority": _THREADS,
    "metrics": _METRICS,
    "metrics-plugin": _METRICS,
    "mqtt-session-state-persistence-timeout": "MQTT session state is written with the message that changes it",
    "purge-page-folders": "empty page directories are always removed",
    "read-whole-page": "pages are read in parts as they are needed",
    "server-dump-interval": "the metrics are always there (px:management)",
    "memory-warning-threshold": _JVM,
    "memory-measure-interval": _JVM,
    "mirror-ack-manager-queue-attempts": _MIRROR,
    "mirror-ack-manager-page-attempts": _MIRROR,
    "mirror-ack-manager-retry-delay": _MIRROR,
    "mirror-ack-manager-warn-unacked": _MIRROR,
    "mirror-page-transaction": _MIRROR,
}

_ADDRESS_SETTING = {
    "page-max-cache-size": "nor has it in Artemis; max-read-page-bytes is what counts",
    "message-counter-history-day-limit": _COUNTERS,
    "auto-create-jms-queues": "it is superseded in Artemis too; auto-create-queues is what counts",
    "auto-delete-jms-queues": "it is superseded in Artemis too; auto-delete-queues is what counts",
    "auto-create-jms-topics": "it is superseded in Artemis too; auto-create-addresses is what counts",
    "auto-delete-jms-topics": "it is superseded in Artemis too; auto-delete-addresses is what counts",
    "default-consumer-window-size": "it concerns clients of the core protocol; AMQP, STOMP and MQTT carry their own",
    "initial-queue-buffer-size": "queues grow as needed",
}

_TRANSPORT = {
    "useNio": _OLD_TCP,
    "useEpoll": _OLD_TCP,
    "useKQueue": _OLD_TCP,
    "nioRemotingThreads": _THREADS,
    "remotingThreads": _THREADS,
    "useGlobalWorkerPool": _THREADS,
    "useNioGlobalWorkerPool": _THREADS,
    "batchDelay": "writes are batched for each turn of the event loop",
    "directDeliver": "messages are delivered in the turn of the event loop in which they are stable",
    "useInvm": _JVM,
    "activemqServerName": _JVM,
    "shutdownTimeout": "connections are closed within a fixed bound",
    "quietPeriod": "connections are closed within a fixed bound",
    "sslProvider": "TLS is always OpenSSL's",
}

_ACCEPTOR = _TRANSPORT | {
    **dict.fromkeys(HTTP_PARAMETERS, _HTTP),
    "stompEnableMessageId": "MESSAGE frames always carry message-id",
    "stomp-enable-message-id": "MESSAGE frames always carry message-id",
    "supportAdvisory": _OPENWIRE,
    "suppressInternalManagementObjects": _OPENWIRE,
    "virtualTopicConsumerWildcards": _OPENWIRE,
    "openwireUseDuplicateDetectionOnFailover": _OPENWIRE,
    "advisoryDispatch": _OPENWIRE,
    "useEmbeddedBytesForMirror": _MIRROR,
    "clusterConnection": "clients of every acceptor are told of the brokers of all cluster connections",
}

_IGNORED: dict[type[Any], Mapping[str, str]] = {
    Configuration: _CORE,
    AddressSettingShape: _ADDRESS_SETTING,
    Divert: {"routing-name": "a divert has no binding that could need another name"},
    AcceptorSettings: _ACCEPTOR,
    ConnectorSettings: _TRANSPORT,
    ConnectionRouter: {
        "key-transformer": "nor has it in Artemis; the policy CONSISTENT_HASH_MODULO is what transforms keys",
    },
}


def ignored_in(shape: type[Any]) -> Iterable[tuple[str, str]]:
    """Return the names without effect inside the element read as ``shape``, with the reasons."""
    return _IGNORED.get(shape, {}).items()
