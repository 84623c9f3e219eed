"""The columns of the sources. docs/pipeline.md says what each means; a test compares the two."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)


def _struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable=True) for name, kind in columns.items()])


#: One row for each record, damaged stretch of bytes, or message of a queue in a checkpoint.
JOURNAL = _struct(
    file=StringType(),
    kind=StringType(),
    node_id=StringType(),
    epoch=LongType(),
    segment=LongType(),
    salt=LongType(),
    created=LongType(),
    offset=LongType(),
    length=LongType(),
    checksum=LongType(),
    record_type=StringType(),
    fenced=BooleanType(),
    folded=BooleanType(),
    tx=LongType(),
    message_id=LongType(),
    queue_id=LongType(),
    message_ids=ArrayType(LongType()),
    queue_ids=ArrayType(LongType()),
    address=StringType(),
    encoding=StringType(),
    priority=IntegerType(),
    routing_type=StringType(),
    durable=BooleanType(),
    timestamp=LongType(),
    expiration=LongType(),
    deliver_at=LongType(),
    count=LongType(),
    number=LongType(),
    store=LongType(),
    page=LongType(),
    size=LongType(),
    duplicate_id=BinaryType(),
    properties=StringType(),
    body=BinaryType(),
    damage=StringType(),
    detail=StringType(),
)
#: One row for each event of a message or of a broker, and each damaged stretch.
AUDIT = _struct(
    file=StringType(),
    broker=StringType(),
    node_id=StringType(),
    epoch=LongType(),
    offset=LongType(),
    time=LongType(),
    event=StringType(),
    address=StringType(),
    queue=StringType(),
    target=StringType(),
    message_id=LongType(),
    size=LongType(),
    producer=LongType(),
    consumer=LongType(),
    failed=BooleanType(),
    paged=BooleanType(),
    duplicate_id=BinaryType(),
    fields=StringType(),
    damage=StringType(),
    detail=StringType(),
)
#: Not made unless asked for by name: the bytes of messages.
ON_REQUEST = frozenset({"body"})


def journal_schema(columns: list[str] | None = None) -> StructType:
    """The columns asked for, in the given order; without a list all but those of ON_REQUEST. Raises KeyError."""
    if columns is None:
        return StructType([field for field in JOURNAL.fields if field.name not in ON_REQUEST])
    return StructType([JOURNAL[name] for name in columns])
