"""Writes `connector.lock.json`. Run it after a change of PySpark's version, and review the difference.

    python -m spark.relock

It resolves the connector with its dependencies, leaves out the jars that PySpark's wheel has, and pins the
others by size and SHA-256.
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
    carried = {jar.name for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    progress.say(f"Resolving {CONNECTOR}")
    with tempfile.TemporaryDirectory() as folder:
        needed = maven.resolve([CONNECTOR], Path(folder))
    missing = [one for one in needed if maven.path_in(Path(), one).name not in carried]
    lock_file.write(LOCK_FILE, f"spark-kafka-{SPARK_VERSION}", missing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
