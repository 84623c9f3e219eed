"""Percentiles that are the same however the data is divided among tasks, and need no memory that grows with it.

Values are counted in stretches that are at most 0.2 % wide; a percentile is the largest value that was seen in the
stretch where its rank is. Spark's `percentile_approx` depends on the order in which tasks finish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

#: Stretches of each power of two.
_STEPS = 512


def step(value: Column) -> Column:
    """The number of the stretch that a value is in; null where it is null."""
    exponent = f.floor(f.log2(f.greatest(f.abs(value), f.lit(0.001))))
    number = exponent * _STEPS + f.floor(f.abs(value) / f.pow(f.lit(2.0), exponent) * _STEPS)
    # What took less than no time (clocks of different machines) is below everything else, shortest first.
    return f.when(value < 0, -number - (1 << 20)).otherwise(number)


def percentiles(counted: DataFrame, key: str, names: Sequence[str], points: Sequence[float]) -> DataFrame:
    """One row for each value of `key`: for each of `names` an array of its percentiles (0 to 1), and `NAME_max`.

    `counted`: key, name, step (as of `step`), n (how many values there are in it) and value (the largest). Values
    without a step are not counted; where there are none, array and maximum are null.
    """
    known = counted.filter("step is not null")
    each = Window.partitionBy(key, "name")
    ranked = known.withColumn("rank", f.sum("n").over(each.orderBy("step"))).withColumn("total", f.sum("n").over(each))
    at = [f.min(f.when(f.col("rank") >= f.ceil(f.col("total") * point), f.col("value"))) for point in points]
    found = ranked.groupBy(key, "name").agg(f.array(*at).alias("points"), f.max("value").alias("most"))
    wide = []
    for name in names:
        mine = f.col("name") == name
        wide.append(f.max(f.when(mine, f.col("points"))).alias(name))
        wide.append(f.max(f.when(mine, f.col("most"))).alias(f"{name}_max"))
    return found.groupBy(key).agg(*wide)
