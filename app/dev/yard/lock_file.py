"""Writes `kafka.lock.json` anew: run it after changing the version below, and review the difference.

    python -m app.dev.yard.lock_file

Ivy resolves the roots with everything they need and checks each download against Maven's checksums; what
came is then pinned by size and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from app.dev.yard import ivy, progress
from app.dev.yard.jars import LOCK_FILE
from app.dev.yard.java import find_java

KAFKA_VERSION = "4.2.0"
# Kafka logs through slf4j 1.7 and brings no binding; without one a broker that fails says nothing.
ROOTS = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
# The command line tools run on the broker's own jars; their further needs are Kafka Connect's.
ALONE = (f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",)
PATTERN = "[organisation]+[artifact]+[revision].[ext]"


def main() -> int:
    java = find_java()
    with tempfile.TemporaryDirectory() as folder:
        jars, work = Path(folder) / "jars", Path(folder) / "ivy"
        for roots, transitive in ((ROOTS, True), (ALONE, False)):
            progress.say(f"Resolving {', '.join(roots)}")
            ivy.retrieve(java, roots, jars, work, pattern=PATTERN, transitive=transitive)
        entries = [
            {
                "coordinate": path.stem.replace("+", ":"),
                "size_bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in sorted(jars.glob("*.jar"))
        ]
    content = {"name": f"kafka-{KAFKA_VERSION}", "jars": entries}
    LOCK_FILE.write_text(json.dumps(content, indent=1) + "\n")
    progress.say(f"{LOCK_FILE.name}: {len(entries)} jars")
    return 0


if __name__ == "__main__":
    sys.exit(main())
