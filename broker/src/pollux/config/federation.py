"""Federation in broker.xml: which addresses and queues fetch messages from others. Durations are milliseconds."""

from typing import Annotated, ClassVar

from msgspec import Struct

from pollux.config.clusters import DiscoveryGroupRef, StaticConnectors
from pollux.config.kinds import INT_MAX, Boolean, Duration, Integer, Password, Text
from pollux.config.markers import Attribute, ByDesign, Listed, NoEffect, Only
from pollux.config.retries import CallTimeout, ConnectionTtl, MaxRetryInterval, RetryInterval, RetryMultiplier
from pollux.redacted import Redacted

_FOR_EVER = ((-1, "for ever"),)


class QueueMatch(Struct, frozen=True):
    """Queues of addresses, both by name or pattern."""

    queue_match: Annotated[str, Text(required=True), Attribute(required=True), "Queue or pattern of queues."]
    address_match: Annotated[str, Text(required=True), Attribute(required=True), "Address or pattern of addresses."]


class AddressMatch(Struct, frozen=True):
    """Addresses by name or pattern."""

    address_match: Annotated[str, Text(required=True), Attribute(required=True), "Address or pattern of addresses."]


class QueuePolicy(Struct, frozen=True):
    """Queues with consumers here that fetch messages from the queues of the same names elsewhere."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    includes: Annotated[tuple[QueueMatch, ...], Listed("include"), "Queues that do; all when there is none."] = ()
    excludes: Annotated[tuple[QueueMatch, ...], Listed("exclude"), "Queues that do not."] = ()
    priority_adjustment: Annotated[
        int | None, Integer(minimum=-INT_MAX), Attribute(), "Priority of the consumer elsewhere; -1 when not given."
    ] = None
    include_federated: Annotated[
        bool,
        Boolean(),
        Attribute(),
        Only((False,), "what others fetch from here is no demand, or messages would go round in circles"),
        "Demand of third brokers counts.",
    ] = False
    line: int = 0


class AddressPolicy(Struct, frozen=True):
    """Addresses with queues here that fetch copies of what is sent to the same addresses elsewhere."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    includes: Annotated[tuple[AddressMatch, ...], Listed("include"), "Addresses that do; all when there is none."] = ()
    excludes: Annotated[tuple[AddressMatch, ...], Listed("exclude"), "Addresses that do not."] = ()
    auto_delete: Annotated[
        bool,
        Boolean(),
        Attribute(),
        Only((False,), "copies wait elsewhere while this broker is not connected, until it does not want them"),
        "Copies are given up when this broker is not connected.",
    ] = False
    auto_delete_delay: Annotated[int, Duration(), Attribute(), NoEffect("auto-delete is off"), "Wait for it."] = 0
    auto_delete_message_count: Annotated[
        int, Integer(special=_FOR_EVER), Attribute(), NoEffect("auto-delete is off"), "Messages up to which it is done."
    ] = 0
    max_hops: Annotated[int, Integer(), Attribute(), "Brokers that a message may come through; 0 no limit."] = 0
    enable_divert_bindings: Annotated[
        bool,
        Boolean(),
        Attribute(),
        Only((False,), "a divert is no demand: name the address that it forwards to"),
        "Diverts count as demand.",
    ] = False
    line: int = 0


class PolicyRef(Struct, frozen=True):
    """A reference to a policy, or to a set of them."""

    ref: Annotated[str, Text(required=True), Attribute(required=True), "Name of the policy or policy-set."]


class PolicySet(Struct, frozen=True):
    """Several policies under one name."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    policies: Annotated[tuple[PolicyRef, ...], Listed("policy"), "Policies in it."] = ()
    line: int = 0


class Upstream(Redacted, frozen=True):
    """A broker that is fetched from."""

    hidden: ClassVar[frozenset[str]] = frozenset({"password"})

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    user: Annotated[str | None, Text(required=True), Attribute(), "The other broker's cluster-user."] = None
    password: Annotated[str | None, Password(), Attribute(), "The other broker's cluster-password."] = None
    priority_adjustment: Annotated[
        int | None,
        Integer(minimum=-INT_MAX),
        Attribute(),
        "Priority of consumers there, where the policy has none.",
    ] = None
    ha: Annotated[
        bool, Boolean(), ByDesign("whichever member of a pair serves is fetched from"), "It follows a failover there."
    ] = False
    circuit_breaker_timeout: Annotated[
        int, Duration(), NoEffect("a connection that fails is tried again after retry-interval"), "Wait after failures."
    ] = 30000
    share_connection: Annotated[
        bool, Boolean(), ByDesign("each upstream has one connection"), "Streams of one broker have one connection."
    ] = False
    connection_ttl: ConnectionTtl = 60000
    call_timeout: CallTimeout = 30000
    retry_interval: RetryInterval = 500
    retry_interval_multiplier: RetryMultiplier = 1.0
    max_retry_interval: MaxRetryInterval = 2000
    initial_connect_attempts: Annotated[
        int, Integer(special=_FOR_EVER), Only((-1,), "it is tried for ever"), "Attempts to connect at first."
    ] = -1
    reconnect_attempts: Annotated[
        int, Integer(special=_FOR_EVER), Only((-1,), "it is tried for ever"), "Attempts to connect again."
    ] = -1
    check_period: Annotated[
        int, Duration(minimum=1), NoEffect("a link asks after a third of connection-ttl"), "How often it is checked."
    ] = 30000
    call_failover_timeout: Annotated[
        int, Duration(special=_FOR_EVER), NoEffect("a call is not waited for over a failover"), "Wait over a failover."
    ] = -1
    static_connectors: Annotated[StaticConnectors | None, "The other broker, or the members of its pair."] = None
    discovery_group_ref: Annotated[DiscoveryGroupRef | None, "The other broker by discovery."] = None
    policies: Annotated[tuple[PolicyRef, ...], Listed("policy"), "What is fetched from there."] = ()
    line: int = 0


class Downstream(Upstream, frozen=True):
    """A broker that is asked to fetch from here, by policies that are told to it."""

    upstream_connector_ref: Annotated[
        str | None,
        Text(required=True),
        ByDesign("the other broker fetches over the connection that is made to it, so that it need not reach this one"),
        "Connector by which it would reach this broker.",
    ] = None


class Federation(Redacted, frozen=True):
    """A ``<federation>``: upstreams and downstreams, and policies that say what is fetched."""

    hidden: ClassVar[frozenset[str]] = frozenset({"password"})

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    user: Annotated[str | None, Text(required=True), Attribute(), "User of upstreams that have none."] = None
    password: Annotated[str | None, Password(), Attribute(), "Password of upstreams that have none."] = None
    upstreams: Annotated[tuple[Upstream, ...], Listed("upstream"), "Brokers that are fetched from."] = ()
    downstreams: Annotated[tuple[Downstream, ...], Listed("downstream"), "Brokers that fetch from here."] = ()
    policy_sets: Annotated[tuple[PolicySet, ...], Listed("policy-set"), "Sets of policies."] = ()
    queue_policies: Annotated[tuple[QueuePolicy, ...], Listed("queue-policy"), "Which queues fetch."] = ()
    address_policies: Annotated[tuple[AddressPolicy, ...], Listed("address-policy"), "Which addresses fetch."] = ()
    line: int = 0

    def policies_of(self, upstream: Upstream) -> list[QueuePolicy | AddressPolicy]:
        """Return the policies of an upstream, those of its sets included, each once."""
        known: dict[str, QueuePolicy | AddressPolicy] = {one.name: one for one in self.queue_policies}
        known |= {one.name: one for one in self.address_policies}
        sets = {one.name: [each.ref for each in one.policies] for one in self.policy_sets}
        names = [name for each in upstream.policies for name in sets.get(each.ref, [each.ref])]
        return [known[name] for name in dict.fromkeys(names) if name in known]
