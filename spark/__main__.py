"""`python -m spark JOB` runs one of the jobs of `spark.jobs`; `--help` lists them.

Exit codes: 0 done, 2 wrong usage, 8 records are missing or altered (`verify`), 7 also if Maven Central does
not answer, others as in `app.archive.errors`. With 9 a job has read all else, except `verify`, which compares
nothing.
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
    "archive": "write topics to Parquet files by topic, date and hour, exactly once",
    "compact": "merge an archive's small files, delete files that no longer count",
    "restore": "write a range of an archive back to a topic",
    "verify": "compare a topic with its copy or its archive, record by record",
    "dashboard": "collect and compare the tables of all regions, exactly once",
    "report": "report on the dashboard's store as JSON or HTML",
    "size": "recommend workers and partitions for the measured loads",
    "jars": "print the connector's jars, for spark-submit --jars",
}
WITHOUT_SPARK = "jars"  # downloads files only
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
    except BrokenPipeError:  # the reader of the pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        say("Interrupted. Output that was not committed does not count.")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
