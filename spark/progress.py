"""The progress of a job on standard error: a bar of Spark's tasks on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.dev.yard.progress import say

PROGRESS_POLL_INTERVAL_S = 0.5
PLAIN_LINE_EVERY_S = 15.0

__all__ = ["say", "tasks_done", "watching"]


@contextmanager
def watching(spark: SparkSession, title: str) -> Iterator[None]:
    """Shows the progress of the Spark tasks that the block starts."""
    stop = threading.Event()
    show = _bar if sys.stderr.isatty() else _lines
    thread = threading.Thread(target=show, args=(spark, title, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def tasks_done(spark: SparkSession) -> tuple[int, int]:
    """Completed tasks and all tasks of the active stages."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    active = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in active), sum(s.numTasks for s in active)


def _bar(spark: SparkSession, title: str, stop: threading.Event) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        while not stop.wait(PROGRESS_POLL_INTERVAL_S):
            done, total = tasks_done(spark)
            bar.update(task, completed=done, total=total or None)


def _lines(spark: SparkSession, title: str, stop: threading.Event) -> None:
    while not stop.wait(PLAIN_LINE_EVERY_S):
        done, total = tasks_done(spark)
        say(f"{title}: {done} of {total} tasks of the active stages")
