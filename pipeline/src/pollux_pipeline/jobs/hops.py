"""The way of messages between the nodes of a cluster, as journals tell it.

What is sent to another node waits in a store-and-forward queue of its own address, as a copy that says which message it
is, for whom, and through which nodes it came (docs/journal-format.md). It leaves that queue when the other node has it
on disk. So a copy that is gone from there has arrived, and one that waits is neither lost nor a second message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pollux.formats.forwards import OUTLETS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FORWARD = (
    "forward struct<life: string, number: bigint, queues: array<string>, visited: array<string>, address: string, "
    "duplicate_id: string, owner: string, moved: boolean>"
)


def between_nodes(address: Column | str = "address") -> Column:
    """Whether an address is that of a store-and-forward queue."""
    return f.coalesce(
        f.startswith(f.col(address) if isinstance(address, str) else address, f.lit(OUTLETS)), f.lit(False)
    )


def duplicate_id() -> Column:
    """The duplicate id of a message, as bytes; that of a copy for another node is in what it says of itself."""
    said = f.unhex(f.get_json_object("properties", "$.forward.duplicate_id"))
    return f.when(between_nodes(), said).otherwise(f.col("duplicate_id"))


def of_journals(rows: DataFrame, records: DataFrame | None = None) -> DataFrame:
    """One row for each copy: node_id (who sends it), message_id, size, to_node, owner (whose the queues are), queues,
    address, id (duplicate id), path (the nodes it went through, to_node last), moved (it was in a queue before).

    `records`: the `effective` ones of `rows`; given, copies of transactions that did not happen are left out.
    """
    kinds = rows.kind.isin("journal", "bodies", "page")
    sent = rows.filter((rows.record_type == "MESSAGE") & kinds & ~rows.fenced & between_nodes())
    if records is not None:
        unsure = (sent.kind == "journal") & ~sent.folded & sent.tx.isNotNull()
        happened = records.filter((records.record_type == "MESSAGE") & between_nodes()).select("node_id", "message_id")
        sent = sent.filter(~unsure).unionByName(
            sent.filter(unsure).join(happened, ["node_id", "message_id"], "left_semi")
        )
    told = sent.select(
        "node_id",
        "message_id",
        "size",
        f.substring_index("address", ".", -1).alias("to_node"),
        f.from_json("properties", _FORWARD)["forward"].alias("one"),
    ).filter("one is not null")
    return told.select(
        *("node_id", "message_id", "size", "to_node"),
        f.coalesce("one.owner", "to_node").alias("owner"),
        f.col("one.queues").alias("queues"),
        f.col("one.address").alias("address"),
        f.unhex(f.col("one.duplicate_id")).cast("string").alias("id"),
        f.concat(f.col("one.visited"), f.array("to_node")).alias("path"),
        f.col("one.moved").alias("moved"),
    ).dropDuplicates(["node_id", "message_id"])


def with_state(hops: DataFrame, held: DataFrame) -> DataFrame:
    """Add `waits`: it is not on the disk of `to_node` yet. `held`: node_id and message_id of what is in queues."""
    waiting = held.select("node_id", "message_id", f.lit(True).alias("held")).distinct()
    found = hops.join(waiting, ["node_id", "message_id"], "left")
    return found.withColumn("waits", f.coalesce("held", f.lit(False))).drop("held")


def ways(hops: DataFrame) -> DataFrame:
    """How many copies went which way: path, messages, moved, waiting."""
    return hops.groupBy(f.array_join("path", " > ").alias("path")).agg(
        f.count("*").alias("messages"),
        f.count_if("moved").alias("moved"),
        f.count_if("waits").alias("waiting"),
    )
