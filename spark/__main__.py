"""`python -m spark JOB`: one of the jobs of `spark.jobs`; `--help` tells which, and each tells its own.

Exit codes: 0 done, 1 failure, 2 usage, 4 nothing of that is archived, 5 PySpark is not installed, something
is not as it must be, or another job was first, 7 a cluster or Maven Central cannot be reached, 8 records are
missing (`verify`), 9 a topic or offsets cannot be read; what else there is was read, but by `verify`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from app.archive.errors import MissingSpark, SparkJobError, check_spark
from app.dev.yard.progress import say

EXIT_INTERRUPTED = 130
JOBS = {
    "archive": "topics to Parquet files by topic, date and hour, exactly once",
    "compact": "join an archive's small files, delete what counts no more",
    "restore": "a range of an archive back to a topic",
    "verify": "a topic against its copy or its archive, record by record",
    "dashboard": "what all regions' tables say, kept and compared, exactly once",
    "report": "that as JSON and as an HTML file",
    "size": "workers and partitions that the measured loads need",
    "jars": "print the connector's jars, for spark-submit --jars",
}
WITHOUT_SPARK = "jars"  # it only fetches
EXAMPLES = """\
examples:
  python -m spark archive --bootstrap 127.0.0.1:9092 --topics 'orders.*' --to ~/archive --once
  python -m spark verify archive --bootstrap 127.0.0.1:9092 --topic orders --archive ~/archive
  python -m spark dashboard --region east=127.0.0.1:9092 --to ~/dash --once
  python -m spark report --from-store ~/dash --html report.html
  python -m spark JOB --help

Jobs run on all cores of this machine. On a cluster: --conf spark.master=spark://host:7077, or spark-submit
(docs/spark-on-a-cluster.md).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one job; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    listed = "\n".join(f"  {name:10}{what}" for name, what in JOBS.items())
    parser = argparse.ArgumentParser(
        prog="python -m spark",
        description=f"Spark jobs of Switchyard.\n\njobs:\n{listed}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", choices=JOBS, metavar="JOB", help="one of the jobs above")
    name = parser.parse_args(given[:1]).job
    try:
        if name != WITHOUT_SPARK:
            check_spark()
    except MissingSpark as error:
        say(str(error))
        return error.exit_code
    job = importlib.import_module(f"spark.jobs.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m spark {name}",
        description=job.DESCRIPTION,
        epilog=job.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    job.add_arguments(parser)
    options = parser.parse_args(given[1:])
    try:
        return int(job.run(options))
    except SparkJobError as error:
        say(str(error))
        return error.exit_code
    except BrokenPipeError:  # whoever read has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        say("Interrupted; what was not finished counts for nothing.")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
