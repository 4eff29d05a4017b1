"""`python -m spark report`: `spark.dashboard.summary`, as JSON, HTML and records of a topic."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from app.archive.errors import BadOption
from app.controllog.global_report import HEAD, PARTS
from spark.dashboard.page import page
from spark.dashboard.summary import summarize
from spark.jobs import common
from spark.kafka import read_options
from spark.progress import say, watching

DESCRIPTION = """\
Tells what the store of `dashboard` knows of all regions: traffic, loss, duplication, latency percentiles, lag
and failover readiness by topic, tier, workload and owner, what happened, and what could not be read. Of what
happened the newest, and of windows and reasons the worst are told, and how many more there are. As JSON,
as one HTML file that needs no network, and, asked for, as records of a topic, a row each under a key of its
own (a compacted topic holds the newest report; writing it again changes nothing). The console of a region
shows what is in its topic switchyard-<region>-report.
"""
EXAMPLES = """\
examples:
  python -m spark report --from-store /var/lib/dash --html report.html --json report.json
  python -m spark report --from-store /var/lib/dash --since 6h --topic switchyard-east-report \\
      --bootstrap 127.0.0.1:9092
"""
KEYS: dict[str, tuple[str, ...]] = {  # what names a row; (): its number
    "topics": ("topic",),
    "tiers": ("tier", "cluster"),
    "pairs": ("topic", "region", "from_tier", "to_tier", "group"),
    "traffic": ("topic", "tier", "cluster"),
    "untimed": ("topic", "tier", "cluster"),
    "windows": (),
    "series": ("topic", "place"),
    "workloads": ("region", "kind", "key"),
    "owners": ("owner",),
    "readiness": ("workload", "region", "to"),
    "timeline": (),
    "quarantine": (),
}
assert tuple(KEYS) == PARTS, "what is written is what is read"


def add_arguments(parser: ArgumentParser) -> None:
    """The job's options."""
    parser.add_argument(
        "--from-store", required=True, type=Path, metavar="DIR", help="what `dashboard --to` has made"
    )
    parser.add_argument(
        "--since", type=common.seconds, metavar="7d", help="back from --until, from a full hour (default: 7d)"
    )
    parser.add_argument(
        "--until",
        type=common.time_ms,
        metavar="TIME",
        help="up to a full hour, which is not in it (default: now)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--topic", metavar="TOPIC", help="write the rows there, too; needs --bootstrap")
    common.add_cluster(parser, needed=False)
    common.add_session(parser)


def run(options: Namespace) -> int:
    """Makes the report and writes it where it was asked for; without --json or --html it is printed."""
    if options.topic and not options.bootstrap:
        raise BadOption("--topic needs --bootstrap, the brokers of its cluster")
    now_ms = time.time_ns() // 1_000_000
    until_ms = now_ms if options.until is None else options.until
    since_ms = until_ms - round(1000 * (7 * 86_400 if options.since is None else options.since))
    spark = common.session("report", options)
    with watching(spark, "Reporting"), common.spark_failures("Reporting"):
        told = summarize(spark, options.from_store, since_ms, until_ms, now_ms)
        if options.topic:
            publish(spark, told, options)
    if options.json:
        replace(options.json, json.dumps(told, indent=1))
    if options.html:
        replace(options.html, page(told))
    if not options.json and not options.html and not options.topic:
        common.result(told)
        return 0
    totals = told["totals"]
    say(f"{totals['records']:,} records, {totals['missing']:,} missing, {totals['extra']:,} too many")
    written = {name: str(path) for name in ("html", "json") if (path := getattr(options, name))}
    common.result({**totals, **written})
    return 0


def replace(path: Path, content: str) -> None:
    """Writes the file whole: whoever reads it sees the former one or this one.

    Raises:
        BadOption: the folder is not there or not to be written to.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".", dir=path.absolute().parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as failure:
        raise BadOption(f"{path}: {failure.strerror}") from failure


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Key and value, JSON both, of every row that a topic gets, as `app.controllog.global_report` reads
    them."""
    head = {name: told[name] for name in ("format", "generated", "from", "to", "totals", "regions", "cut")}
    yield json.dumps([HEAD]), json.dumps({**head, "rows": sum(len(told[part]) for part in KEYS)})
    for part, names in KEYS.items():
        for number, row in enumerate(told[part]):
            key = json.dumps([part, *([row[name] for name in names] or [str(number)])])
            yield key, json.dumps({**row, "generated": told["generated"]})


def publish(spark: SparkSession, told: Mapping[str, Any], options: Namespace) -> None:
    """Writes the rows to the topic, which is made if it is not there."""
    target = common.cluster(spark, options.bootstrap, options.command_config)
    if options.topic not in target.topics(re.escape(options.topic)):
        target.create(options.topic, 1, {"cleanup.policy": "compact"})
    client = {**read_options(options.command_config), "bootstrap.servers": options.bootstrap}
    frame = spark.createDataFrame(list(rows(told)), "key string, value string").coalesce(1)  # in their order
    writer = frame.write.format("kafka").option("topic", options.topic)
    writer.options(**{f"kafka.{key}": value for key, value in client.items()}).save()
