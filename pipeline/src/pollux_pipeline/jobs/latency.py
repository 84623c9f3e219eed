"""Percentiles that are the same however the data is divided among tasks, and need no memory that grows with it.

Values are counted in stretches that are at most 0.2 % wide; a percentile is the largest value that was seen in the
stretch where its rank is. Spark's `percentile_approx` depends on the order in which tasks finish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

#: Stretches of each power of two.
_STEPS = 512


def percentiles(frame: DataFrame, key: str, values: Mapping[str, Column], points: Sequence[float]) -> DataFrame:
    """One row for each value of `key`: for each of `values` an array of its percentiles (0 to 1), and `NAME_max`.

    Null values are not counted; where there are none, array and maximum are null.
    """
    measured = f.array(*(f.struct(f.lit(name).alias("name"), value.alias("value")) for name, value in values.items()))
    rows = frame.select(key, f.inline(measured)).filter("value is not null")
    exponent = f.floor(f.log2(f.greatest(f.abs("value"), f.lit(0.001))))
    step = exponent * _STEPS + f.floor(f.abs("value") / f.pow(f.lit(2.0), exponent) * _STEPS)
    # What took less than no time (clocks of different machines) is below everything else, shortest first.
    step = f.when(f.col("value") < 0, -step - (1 << 20)).otherwise(step)
    counted = rows.groupBy(key, "name", step.alias("step")).agg(f.count("*").alias("n"), f.max("value").alias("value"))
    each = Window.partitionBy(key, "name")
    ranked = counted.withColumn("rank", f.sum("n").over(each.orderBy("step"))).withColumn(
        "total", f.sum("n").over(each)
    )
    at = [f.min(f.when(f.col("rank") >= f.ceil(f.col("total") * point), f.col("value"))) for point in points]
    found = ranked.groupBy(key, "name").agg(f.array(*at).alias("points"), f.max("value").alias("most"))
    wide = []
    for name in values:
        mine = f.col("name") == name
        wide.append(f.max(f.when(mine, f.col("points"))).alias(name))
        wide.append(f.max(f.when(mine, f.col("most"))).alias(f"{name}_max"))
    return found.groupBy(key).agg(*wide)
