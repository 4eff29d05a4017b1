"""Writes `connector.lock.json` anew: run it after changing the version of PySpark, and review the difference.

    python -m spark.relock

Ivy resolves the connector with all it asks for; what PySpark's wheel already carries is left out, the rest is
pinned by size and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from app.dev.yard import ivy, progress
from app.dev.yard.java import find_java
from spark.connector import LOCK_FILE

SPARK_VERSION = "4.0.0"
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}"
PATTERN = "[organisation]+[artifact]+[revision].[ext]"


def main() -> int:
    """Resolves and writes; the exit code is 0."""
    carried = {jar.name for jar in ivy.ivy_jar().parent.glob("*.jar")}
    with tempfile.TemporaryDirectory() as folder:
        jars = Path(folder) / "jars"
        progress.say(f"Resolving {CONNECTOR}")
        ivy.retrieve(find_java(), [CONNECTOR], jars, Path(folder) / "ivy", pattern=PATTERN, transitive=True)
        entries = [
            {
                "coordinate": path.stem.replace("+", ":"),
                "size_bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in sorted(jars.glob("*.jar"))
            if path.name.split("+", 1)[1].replace("+", "-") not in carried
        ]
    LOCK_FILE.write_text(
        json.dumps({"name": f"spark-kafka-{SPARK_VERSION}", "jars": entries}, indent=1) + "\n"
    )
    progress.say(f"{LOCK_FILE.name}: {len(entries)} jars")
    return 0


if __name__ == "__main__":
    sys.exit(main())
