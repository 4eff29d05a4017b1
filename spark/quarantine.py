"""Parting what a job can use from what it cannot.

A bad record is kept whole, with the first reason that holds, and is counted; it never stops a job and is
never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

REASON = "reason"


def part(frame: DataFrame, reasons: Mapping[str, Column]) -> tuple[DataFrame, DataFrame]:
    """What is good, and what is bad with a column `reason`; `reasons` says by name what is wrong.

    A condition that is null does not hold.
    """
    judged = judge(frame, reasons)
    good = judged.where(f.col(REASON).isNull()).drop(REASON)
    return good, judged.where(f.col(REASON).isNotNull())


def judge(frame: DataFrame, reasons: Mapping[str, Column]) -> DataFrame:
    """The frame with `reason`: null for what is good, else the first that holds; both in one pass."""
    named = [f.when(wrong, f.lit(name)) for name, wrong in reasons.items()]
    return frame.withColumn(REASON, f.coalesce(*named) if named else f.lit(None).cast("string"))
