"""Writes `kafka.lock.json` again: run it after a change of the version below, and review the difference.

    python -m app.dev.yard.lock_file

It resolves the roots with all that they need, and pins each jar by size and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.dev.yard import maven, progress
from app.dev.yard.jars import LOCK_FILE

KAFKA_VERSION = "4.2.0"
# Kafka logs through slf4j 1.7 without a binding; without a binding a failing broker logs nothing.
ROOTS = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
# The command line tools need the broker's jars and Kafka Connect's.
ALONE = (f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",)


def write(lock_file: Path, name: str, coordinates: Sequence[str]) -> None:
    """Fetches the jars of `coordinates`, and pins them as the set `name`."""
    chosen = sorted(coordinates, key=lambda coordinate: coordinate.split(":"))
    with tempfile.TemporaryDirectory() as folder, progress.steps("Fetching", len(coordinates)) as step:
        maven.download(coordinates, Path(folder), on_step=step)
        jars = [(coordinate, maven.path_in(Path(folder), coordinate)) for coordinate in chosen]
        entries = [
            {
                "coordinate": coordinate,
                "size_bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for coordinate, path in jars
        ]
    lock_file.write_text(json.dumps({"name": name, "jars": entries}, indent=1) + "\n")
    progress.say(f"{lock_file.name}: {len(entries)} jars")


def main() -> int:
    progress.say(f"Resolving {', '.join(ROOTS)}")
    with tempfile.TemporaryDirectory() as folder:
        resolved = maven.resolve(ROOTS, Path(folder))
    write(LOCK_FILE, f"kafka-{KAFKA_VERSION}", [*resolved, *ALONE])
    return 0


if __name__ == "__main__":
    sys.exit(main())
