"""The private attributes of Spark's sessions by which Python reaches Spark's own Java process.

PySpark has no public form of them; no upstream issue is known that asks for one.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def jvm_of(session: SparkSession) -> Any:
    """The classes of Spark's Java process: `jvm_of(session).java.util.ArrayList()`. Py4j has no types."""
    return session._jvm


def has_ended(session: SparkSession) -> bool:
    """Whether the session has ended, such as when its cluster's master is gone: no round can work then."""
    context: Any = session.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())
