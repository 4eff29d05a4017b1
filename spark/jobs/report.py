"""`python -m spark report` writes `spark.dashboard.summary` as JSON and HTML."""

from __future__ import annotations

import json
import os
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from app.archive.errors import BadOption
from spark.dashboard.page import page
from spark.dashboard.summary import summarize
from spark.jobs import common
from spark.progress import say, watching

DESCRIPTION = """\
Reports on all regions from the store of `dashboard`: traffic, loss, duplication, latency percentiles, lag
and failover readiness by topic, tier, workload and owner; a timeline of events; and quarantined records. It
lists the newest events and the worst windows, with the number of the rest. The report is JSON, or one HTML
file that needs no network.
"""
EXAMPLES = """\
examples:
  python -m spark report --from-store /var/lib/dash --html report.html --json report.json
  python -m spark report --from-store /var/lib/dash --since 6h
"""
REMOVED = dict.fromkeys(
    ("--topic", "--bootstrap", "--command-config"),
    "give --json FILE or --html FILE, and serve the file; --json is one document for programs",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--from-store", required=True, type=Path, metavar="DIR", help="the store that `dashboard --to` writes"
    )
    parser.add_argument(
        "--since",
        type=common.seconds,
        metavar="7d",
        help="the time before --until, from a full hour (default: 7d)",
    )
    parser.add_argument(
        "--until",
        type=common.time_ms,
        metavar="TIME",
        help="the end, rounded up to a full hour (default: now)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    common.add_removed(parser, REMOVED)
    common.add_session(parser)


def run(options: Namespace) -> int:
    """Writes the report to the files of --json and --html; prints it if there is neither."""
    now_ms = time.time_ns() // 1_000_000
    until_ms = now_ms if options.until is None else options.until
    since_ms = until_ms - round(1000 * (7 * 86_400 if options.since is None else options.since))
    spark = common.session("report", options)
    with watching(spark, "Reporting"), common.spark_failures("Reporting"):
        summary = summarize(spark, options.from_store, since_ms, until_ms, now_ms)
    if options.json:
        replace(options.json, json.dumps(summary, indent=1))
    if options.html:
        replace(options.html, page(summary))
    if not options.json and not options.html:
        common.result(summary)
        return 0
    totals = summary["totals"]
    say(f"{totals['records']:,} records, {totals['missing']:,} missing, {totals['extra']:,} extra")
    written = {name: str(path) for name in ("html", "json") if (path := getattr(options, name))}
    common.result({**totals, **written})
    return 0


def replace(path: Path, content: str) -> None:
    """Replaces the file atomically: a reader sees the old content or the new one.

    Raises:
        BadOption: The folder does not exist or is not writable.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".", dir=path.absolute().parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as failure:
        raise BadOption(f"{path}: {failure.strerror}") from failure
