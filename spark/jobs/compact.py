"""`python -m spark compact` runs `spark.archive.compact`."""

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
Merges an archive's small files within a topic, date and hour; the archiving job may run meanwhile. Then it
counts the files that were replaced, or never committed, more than --older-than ago; --execute deletes them.
"""
EXAMPLES = """\
examples:
  python -m spark compact --archive /var/lib/archive
  python -m spark compact --archive /var/lib/archive --target 256 --older-than 6h --execute
"""
MB = 1024 * 1024
SHORTEST_S = 3600.0  # a reader may still need the file


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--archive", required=True, type=Path, metavar="DIR")
    parser.add_argument(
        "--target",
        type=common.positive,
        default=TARGET_BYTES // MB,
        metavar="MB",
        help="size of a merged file (default: 128)",
    )
    parser.add_argument(
        "--older-than",
        type=common.seconds,
        default=86_400.0,
        metavar="1d",
        help="delete files that have not counted for this long (default: 1d)",
    )
    parser.add_argument("--execute", action="store_true", help="delete the files (default: only count them)")
    common.add_session(parser)


def run(options: Namespace) -> int:
    if not SHORTEST_S <= options.older_than <= REMEMBERED_MS / 1000:
        raise BadOption(
            "--older-than: give 1h to 7d. Readers may need a file for 1h; the log forgets removals after 7d."
        )
    archive = Archive.open(options.archive)
    spark = common.session("compact", options)
    records = before = after = 0
    with (
        watching(spark, "Compacting"),
        common.spark_failures("Compacting (committed merges count)"),
    ):
        for joined in compact(spark, archive, time.time_ns() // 1_000_000, options.target * MB):
            say(f"{joined.records:,} records: merged {joined.before} files into {joined.after}")
            records, before, after = records + joined.records, before + joined.before, after + joined.after
    old = stale(archive, time.time_ns() // 1_000_000, int(options.older_than * 1000))
    for path in old if options.execute else []:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    say(f"{len(old)} files and folders that do not count {'were' if options.execute else 'would be'} deleted")
    counts = {"records": records, "files_before": before, "files_after": after, "stale": len(old)}
    common.result(counts | {"deleted": options.execute})
    return 0
