"""Adds audit trails to ledgers and journals: when brokers became live, and what became of each message.

A trail is evidence, not the journal: it may lack its last moments and does not say what was promised. So a trail never
makes a message lost. It explains one: the broker noted that a consumer without a ledger was done with it, that it
expired, became a dead letter, or that an administrator moved or removed it.

Times are the brokers' clocks (milliseconds since the epoch). They order nothing between brokers: epochs do.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pollux.formats.forwards import OUTLETS
from pollux_pipeline.jobs.base import count_where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

#: Events behind which a message is not in the queue any more.
ENDS = ("ACKNOWLEDGED", "EXPIRED", "DEAD_LETTERED", "MOVED", "REMOVED")
#: Later ones win where a broker noted several at one moment.
_PROGRESS = ("ACCEPTED", "DELIVERED", "RELEASED", *ENDS)
#: What `by_id` finds of one message.
TRAIL = (
    "array<struct<queue: string, fate: string, fate_at: bigint, target: string, consumer: bigint, deliveries: bigint, "
    "accepted_at: bigint, producer: bigint>>"
)
#: What `activations` finds of one life.
SERVED = (
    "node_key string, epoch bigint, live_broker string, live_at bigint, recovered bigint, recovery_ms bigint, "
    "reason string, stopped_at bigint, stop_reason string"
)
#: Stretches of time that a report's plot has.
_STRETCHES = 200


def trails(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The rows of audit trails (see `pollux_pipeline.sources.audit`)."""
    return spark.read.format("pollux_audit").option("paths", json.dumps(list(paths))).load()


def node_key(node: Column | str) -> Column:
    """A node id as trails write it: clients' ledgers may have dashes and capitals in theirs."""
    return f.lower(f.replace(f.col(node) if isinstance(node, str) else node, f.lit("-"), f.lit("")))


def damage(rows: DataFrame) -> DataFrame:
    """Stretches of trails that cannot be read, and what a broker says it could not write."""
    unread = rows.filter("damage is not null").select("node_id", "file", "epoch", "offset", "damage", "detail")
    unwritten = rows.filter("event = 'audit-lost'").select(
        *("node_id", "file", "epoch", "offset"),
        f.lit("trail-lost").alias("damage"),
        f.concat(f.lit("the broker could not write a part of its trail: "), f.col("fields")).alias("detail"),
    )
    return unread.unionByName(unwritten).select(
        *("node_id", "file", f.lit("audit").alias("kind"), "epoch", f.lit(None).cast("bigint").alias("segment")),
        *("offset", f.lit(None).cast("bigint").alias("length"), "damage", "detail"),
    )


def lifecycle(rows: DataFrame) -> DataFrame:
    """One row for each event of a broker: time, broker, node_id, epoch, event, fields (JSON)."""
    events = rows.filter("fields is not null and damage is null")
    # The epoch of a file is that of the life before while a broker activates; the event itself knows better.
    epoch = f.coalesce(f.get_json_object("fields", "$.epoch").try_cast("bigint"), f.col("epoch"))
    node = f.coalesce(f.nullif(f.get_json_object("fields", "$.node_id"), f.lit("")), f.col("node_id"))
    return events.select("time", "broker", node.alias("node_id"), epoch.alias("epoch"), "event", "fields")


def activations(events: DataFrame) -> DataFrame:
    """One row for each life: node_key, epoch, live_broker, live_at, recovered, recovery_ms, reason, stopped_at,
    stop_reason."""

    def value(name: str) -> Column:
        return f.get_json_object("fields", f"$.{name}")

    is_live, is_stop = f.col("event") == "broker-live", f.col("event") == "broker-stopped"
    ended = (f.col("event") == "activation") & value("from").isin("live") & (value("to") != "live")
    began = (f.col("event") == "activation") & (value("to") == "live")
    return (
        events.filter("epoch > 0 and node_id != ''")
        .groupBy(node_key("node_id").alias("node_key"), "epoch")
        .agg(
            f.min(f.when(is_live, f.col("broker"))).alias("live_broker"),
            f.min(f.when(is_live, f.col("time"))).alias("live_at"),
            f.min(f.when(is_live, value("messages").try_cast("bigint"))).alias("recovered"),
            f.min(f.when(is_live, value("recovery_ms").try_cast("bigint"))).alias("recovery_ms"),
            f.min(f.when(began, value("reason"))).alias("reason"),
            f.min(f.when(is_stop | ended, f.col("time"))).alias("stopped_at"),
            f.min(f.when(is_stop | ended, value("reason"))).alias("stop_reason"),
        )
        .filter("live_at is not null")
    )


def throughput(rows: DataFrame) -> DataFrame:
    """at_ms, width_ms and what happened in that stretch of time: message events, and clients that came and went."""
    timed = rows.filter("damage is null and time is not null").select("time", "event")
    span = timed.agg(f.min("time").alias("low"), f.max("time").alias("high"))
    width = f.greatest(f.ceil((f.col("high") - f.col("low")) / _STRETCHES / 100) * 100, f.lit(100))
    counted = timed.crossJoin(f.broadcast(span.select("low", width.alias("width"))))
    at = f.floor((f.col("time") - f.col("low")) / f.col("width")) * f.col("width") + f.col("low")
    return counted.groupBy(at.alias("at_ms"), f.col("width").alias("width_ms")).agg(
        count_where("event = 'ACCEPTED'").alias("accepted"),
        count_where("event = 'DELIVERED'").alias("delivered"),
        count_where("event = 'ACKNOWLEDGED'").alias("acknowledged"),
        count_where("event = 'client-connected'").alias("connected"),
        count_where("event = 'client-disconnected'").alias("disconnected"),
    )


def fates(rows: DataFrame) -> DataFrame:
    """Return what became of each message in each queue: id (its duplicate id), node_id, message_id, queue, address,
    accepted_at, producer, deliveries, releases, and of its last event `fate`, `fate_at`, `target`, `consumer`.

    `fate` is one of ENDS, or null while it is in the queue.
    """
    events = rows.filter("queue is not null and damage is null and message_id > 0")
    known = f.array(*(f.lit(name) for name in _PROGRESS))
    last = f.struct(
        *("epoch", "time", f.array_position(known, f.col("event")).alias("progress"), "event", "target"),
    )
    ended = f.col("event").isin(*ENDS)
    accepted = f.col("event") == "ACCEPTED"
    delivered = f.struct("epoch", "time", "consumer")
    found = events.groupBy("node_id", "message_id", "queue").agg(
        f.max(f.when(accepted, f.col("duplicate_id"))).cast("string").alias("id"),
        f.min("address").alias("address"),
        f.min(f.when(accepted, f.col("time"))).alias("accepted_at"),
        f.max(f.when(accepted, f.col("producer"))).alias("producer"),
        f.count_if(f.col("event") == "DELIVERED").alias("deliveries"),
        f.count_if(f.col("event") == "RELEASED").alias("releases"),
        f.max(f.when(ended, last)).alias("end"),
        f.max(f.when(f.col("event") == "DELIVERED", delivered)).alias("to"),
    )
    return found.select(
        *("id", "node_id", "message_id", "queue", "address", "accepted_at", "producer", "deliveries", "releases"),
        f.col("end.event").alias("fate"),
        f.col("end.time").alias("fate_at"),
        f.col("end.target").alias("target"),
        f.col("to.consumer").alias("consumer"),
    )


def by_id(found: DataFrame) -> DataFrame:
    """id and `trail`: an array of what became of it in each queue, for messages whose duplicate id is known."""
    one = f.struct("queue", "fate", "fate_at", "target", "consumer", "deliveries", "accepted_at", "producer")
    return found.filter("id is not null").groupBy("id").agg(f.sort_array(f.collect_list(one)).alias("trail"))


def went_on(entry: str) -> str:
    """SQL for whether a message went from one queue to another node of a cluster. `entry`: an element of `trail`."""
    return f"coalesce({entry}.fate = 'MOVED' and startswith({entry}.target, '{OUTLETS}'), false)"


def words(entry: str) -> str:
    """SQL for what the trail says of a message in one queue, for people. `entry`: an element of `trail`."""
    return f"""case
        when {entry}.fate = 'ACKNOWLEDGED' then concat('the broker noted: acknowledged in queue ', {entry}.queue,
            coalesce(concat(' by connection ', {entry}.consumer), ''), ' at ', {_when(f"{entry}.fate_at")})
        when {entry}.fate is not null then concat('the broker noted: ', lower(replace({entry}.fate, '_', ' ')),
            ' in queue ', {entry}.queue, coalesce(concat(', went to ', {entry}.target), ''), ' at ',
            {_when(f"{entry}.fate_at")})
        else concat('the broker noted: in queue ', {entry}.queue, ', delivered ', {entry}.deliveries,
            ' times, never done with')
    end"""


def _when(column: str) -> str:
    return f"date_format(timestamp_millis({column}), 'yyyy-MM-dd HH:mm:ss.SSS')"


#: SQL for who sent a message that no ledger has as sent; null when the trail does not know.
SENDER = f"""if(size(trail) > 0 and trail[0].accepted_at is not null, concat('the broker noted: accepted at ',
    {_when("trail[0].accepted_at")}, coalesce(concat(' from connection ', trail[0].producer), '')), null)"""
