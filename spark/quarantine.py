"""Separates the records that a job can use from those that it quarantines.

A bad record is kept whole, with the first reason that holds, and is counted. It never stops a job.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

REASON = "reason"


def part(frame: DataFrame, reasons: Mapping[str, Column]) -> tuple[DataFrame, DataFrame]:
    """Splits the DataFrame into good rows, and bad rows with a column `reason`.

    Args:
        reasons: By the reason's name, the condition of a bad row. A null condition does not hold.
    """
    judged = judge(frame, reasons)
    good = judged.where(f.col(REASON).isNull()).drop(REASON)
    return good, judged.where(f.col(REASON).isNotNull())


def judge(frame: DataFrame, reasons: Mapping[str, Column]) -> DataFrame:
    """Adds `reason`: null for a good row, otherwise the first reason that holds. One pass gives both."""
    named = [f.when(wrong, f.lit(name)) for name, wrong in reasons.items()]
    return frame.withColumn(REASON, f.coalesce(*named) if named else f.lit(None).cast("string"))
