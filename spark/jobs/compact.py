"""`python -m spark compact`: `spark.archive.compact`."""

from __future__ import annotations

import shutil
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from app.archive.errors import BadOption
from app.archive.log import REMEMBERED_MS, Archive
from spark.archive.compact import TARGET_BYTES, compact, stale
from spark.jobs import common
from spark.progress import say, watching

DESCRIPTION = """\
Joins an archive's small files within topic, date and hour; the archiving job may run beside it. Then names
the files that were replaced, or never came to count, more than --older-than ago: with --execute they are
deleted.
"""
EXAMPLES = """\
examples:
  python -m spark compact --archive /var/lib/archive
  python -m spark compact --archive /var/lib/archive --target 256 --older-than 6h --execute
"""
MB = 1024 * 1024
SHORTEST_S = 3600.0  # a reader may still be at it


def add_arguments(parser: ArgumentParser) -> None:
    """The job's options."""
    parser.add_argument("--archive", required=True, type=Path, metavar="DIR")
    parser.add_argument(
        "--target",
        type=common.positive,
        default=TARGET_BYTES // MB,
        metavar="MB",
        help="of a file (default: 128)",
    )
    parser.add_argument(
        "--older-than",
        type=common.seconds,
        default=86_400.0,
        metavar="1d",
        help="of what is deleted (default: 1d)",
    )
    parser.add_argument("--execute", action="store_true", help="delete, instead of saying what would be")
    common.add_session(parser)


def run(options: Namespace) -> int:
    """Joins, then deletes or says what it would."""
    if not SHORTEST_S <= options.older_than <= REMEMBERED_MS / 1000:
        raise BadOption(
            "--older-than: give 1h to 7d; readers need the first, and later nobody knows when it was"
        )
    archive = Archive.open(options.archive)
    spark = common.session("compact", options)
    records = before = after = 0
    with (
        watching(spark, "Compacting"),
        common.spark_failures("Compacting, of which nothing unfinished counts"),
    ):
        for joined in compact(spark, archive, time.time_ns() // 1_000_000, options.target * MB):
            say(f"{joined.records:,} records: {joined.before} files are {joined.after} now")
            records, before, after = records + joined.records, before + joined.before, after + joined.after
    old = stale(archive, time.time_ns() // 1_000_000, int(options.older_than * 1000))
    for path in old if options.execute else []:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    say(
        f"{len(old)} files and folders that count no more {'were' if options.execute else 'would be'} deleted"
    )
    told = {"records": records, "files_before": before, "files_after": after, "stale": len(old)}
    common.result(told | {"deleted": options.execute})
    return 0
