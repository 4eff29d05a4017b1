"""Errors of a Spark job, each with the command line's exit code.

SparkJobError           1  the job failed
├── BadOption           2  an option cannot be used
├── NotArchived         4  the archive does not have the topic
├── InvalidArchive      5  the archive, topic or machine lacks what the job needs
├── MissingSpark        5  PySpark is not installed
├── ConcurrentCommit    5  another job changed the same part of the archive first
├── Unreachable         7  the cluster does not answer
└── UnreadableTopic     9  a topic, partition or range of offsets cannot be read
"""

from __future__ import annotations

import importlib


class SparkJobError(Exception):
    """The job failed; the text says why, and what to do."""

    exit_code = 1


class BadOption(SparkJobError):
    exit_code = 2


class NotArchived(SparkJobError):
    exit_code = 4


class InvalidArchive(SparkJobError):
    exit_code = 5


class MissingSpark(SparkJobError):
    exit_code = 5


class ConcurrentCommit(SparkJobError):
    exit_code = 5


class Unreachable(SparkJobError):
    exit_code = 7


class UnreadableTopic(SparkJobError):
    exit_code = 9


def check_spark() -> None:
    """Raises MissingSpark, with the remedy, when PySpark is not installed: it is an extra."""
    try:
        importlib.import_module("pyspark")
    except ImportError as failure:
        raise MissingSpark(
            "Spark's jobs need PySpark (0.5 GB), which is not installed: "
            "pip install 'switchyard-kafka[spark]', or `make install` in a clone."
        ) from failure


def cause(failure: object) -> str:
    """Why Java failed, in one line: the innermost exception's message; for a Python task its last line."""
    thrown = getattr(failure, "java_exception", None)
    if thrown is None:
        text = str(failure)
    else:
        while thrown.getCause() is not None:
            thrown = thrown.getCause()
        text = str(thrown.getMessage() or thrown.toString())
    lines = [line.strip() for line in text.split("\n\tat ")[0].splitlines() if line.strip()]
    if not lines:
        return type(failure).__name__
    return lines[-1] if any(line.startswith("Traceback") for line in lines) else lines[0]
