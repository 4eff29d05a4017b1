"""Writes `connector.lock.json` anew: run it after changing the version of PySpark, and review the difference.

    python -m spark.relock

The connector is resolved with all it asks for; what PySpark's wheel already carries is left out, the rest is
pinned by size and SHA-256.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyspark

from app.dev.yard import lock_file, maven, progress
from spark.connector import LOCK_FILE

SPARK_VERSION = "4.0.0"
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}"


def main() -> int:
    """Resolves and writes; the exit code is 0."""
    carried = {jar.name for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    progress.say(f"Resolving {CONNECTOR}")
    with tempfile.TemporaryDirectory() as folder:
        needed = maven.resolve([CONNECTOR], Path(folder))
    missing = [one for one in needed if maven.path_in(Path(), one).name not in carried]
    lock_file.write(LOCK_FILE, f"spark-kafka-{SPARK_VERSION}", missing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
