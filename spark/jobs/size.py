"""`python -m spark size` runs `spark.sizing`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import BadOption, InvalidArchive
from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from app.controllog.topics import ControlTopics
from app.sizing.recommendation import SizingRules
from spark.archive.frames import read_files
from spark.dashboard import daily, frames
from spark.dashboard.store import LOADS, files_of, stored
from spark.files import read_parquet_at
from spark.jobs import common
from spark.jobs.report import replace
from spark.progress import say, watching
from spark.schemas import RECORD
from spark.sizing.history import LOAD, left_out_words
from spark.sizing.report import size, tables

DESCRIPTION = """\
Recommends workers and partitions for the measured loads, by the controller's own placement. It takes each
fleet's hours of most cpu and of most network in the last week, and shows the same for each earlier week
beside the workers that ran then. Loads come from the store of `dashboard`, from archives of heartbeats, or
from Parquet files with the columns of the store's loads and `region`.
"""
EXAMPLES = """\
examples:
  python -m spark size --from-store /var/lib/dash
  python -m spark size --archive east=/var/lib/archive --spare 2 --json size.json
"""
_FORECASTS = (
    "forecast the metric switchyard_recommended_workers, for example with predict_linear of Prometheus"
)
_SCENARIOS = "change a copy of the loads (Parquet files), and give its folder as --loads"
_PRICES = "multiply the workers of --json by your price, for example in a spreadsheet"
REMOVED = {
    **dict.fromkeys(("--weeks", "--percentile", "--csv"), _FORECASTS),
    **dict.fromkeys(("--publish", "--compare", "--region", "--command-config"), _FORECASTS),
    **dict.fromkeys(("--double", "--add-region"), _SCENARIOS),
    "--lose-zone": "give --spare, with the number of workers in a zone",
    **dict.fromkeys(("--price-worker-hour", "--price-gb"), _PRICES),
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--from-store", type=Path, metavar="DIR", help="the store that `dashboard --to` writes"
    )
    parser.add_argument(
        "--archive",
        action="append",
        default=[],
        type=_archive,
        metavar="REGION=DIR",
        help="a region's archive that has its heartbeats",
    )
    parser.add_argument("--loads", type=Path, metavar="DIR", help="a folder of Parquet files with loads")
    parser.add_argument(
        "--spare", type=int, default=1, metavar="N", help="workers that may be lost at once (default: 1)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the JSON there (default: standard output)"
    )
    common.add_removed(parser, REMOVED)
    common.add_session(parser)


def run(options: Namespace) -> int:
    if not (options.from_store or options.archive or options.loads):
        raise BadOption("give the history of loads: --from-store, --archive or --loads")
    if options.spare < 0:
        raise BadOption(f"--spare {options.spare}: give 0 or more")
    spark = common.session("size", options)
    with watching(spark, "Sizing"), common.spark_failures("Sizing"):
        loads, bad = _read(spark, options)
        found = size(loads, SizingRules(spare_workers=options.spare), time.time_ns() // 1_000_000)
    say(tables(found))
    found["left_out"]["heartbeats"] = bad._asdict()
    for line in left_out_words(found["left_out"]):
        say(line)
    if bad.records:
        say(f"{bad.records:,} archived heartbeats cannot be used, and are left out; for example: {bad.why}")
    if options.json:
        replace(options.json, json.dumps(found, indent=1))
    else:
        sys.stdout.write(json.dumps(found) + "\n")
    return 0


class Bad(NamedTuple):
    """How many heartbeats cannot be used, and a reason."""

    records: int = 0
    why: str = ""


def _read(spark: SparkSession, options: Namespace) -> tuple[DataFrame, Bad]:
    """The loads from all sources that the options name, as `LOAD`, and the unusable heartbeats."""
    found: list[DataFrame] = []
    bad = Bad()
    if options.from_store:
        for region, (archive, state) in daily.open_stores(options.from_store).items():
            loads = stored(spark, archive, files_of(state, LOADS), LOADS)
            found.append(loads.withColumn("region", f.lit(region)))
    for region, folder in options.archive:
        reader = ArchiveReader(Archive.open(folder))
        topic = ControlTopics(region).heartbeats.name
        files = reader.files(ArchiveQuery(topic, topic_id=reader.lineage(topic, None)))
        paths = [str(reader.archive.root / file.path) for file in files]
        if paths:
            records = read_files(spark, paths).withColumn("topic", f.lit(topic)).select(RECORD.names)
            found.append(frames.loads(records).withColumn("region", f.lit(region)))
            bad = _with_bad(bad, region, records)
    if options.loads:
        found.append(read_parquet_at(spark, LOAD, [options.loads]))
    if not found:
        raise InvalidArchive(
            "the archives have no heartbeats: archive the topics switchyard-<region>-heartbeats"
        )
    loads = found[0].select(LOAD.names)
    for one in found[1:]:
        loads = loads.union(one.select(LOAD.names))
    return loads, bad


def _with_bad(before: Bad, region: str, records: DataFrame) -> Bad:
    """Adds a region's unusable heartbeats."""
    counted = frames.bad_heartbeats(records).agg(f.count("*").alias("records"), f.max("reason").alias("why"))
    (one,) = counted.collect()
    return Bad(before.records + one["records"], f"{region}: {one['why']}") if one["records"] else before


def _archive(given: str) -> tuple[str, Path]:
    region, equals, folder = given.partition("=")
    if not equals or not region or not folder:
        msg = f"{given!r} is not REGION=DIR"
        raise argparse.ArgumentTypeError(msg)
    return region, Path(folder)
