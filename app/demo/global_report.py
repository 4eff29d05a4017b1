"""What Spark's jobs say of the demo's data, as files of a folder: each job is a process of its own.

<folder>/report.html, report.json   all regions: traffic, loss, owners (also at the console's /report)
<folder>/size.json                  workers and partitions, of the loads that workers have told
<folder>/archive                    the topic as Parquet files
<folder>/verify-*.log               the topic compared with its copy, and with its archive, record by record
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from app.topics import ControlTopics
from app.yard import Yard

ENOUGH_S = 900.0  # of one job: the first fetches the connector


def jobs(yard: Yard, folder: Path, topic: str, source: str, target: str) -> list[tuple[str, list[str]]]:
    """Name and arguments of each job, in their order."""
    regions = sorted({cluster.region for cluster in yard.clusters})
    home = yard.clusters[0].region
    control = {region: yard.bootstrap(f"{region}-regional") for region in regions}
    named = [part for region, at in control.items() for part in ("--region", f"{region}={at}")]
    store, archive = str(folder / "store"), str(folder / "archive")
    at, copy = yard.bootstrap(source), yard.bootstrap(target)
    written = ["--html", str(folder / "report.html"), "--json", str(folder / "report.json")]
    shown = ["--topic", ControlTopics(home).report.name, "--bootstrap", control[home]]
    of = ["--bootstrap", at, "--topic", topic]
    return [
        ("dashboard", ["dashboard", *named, "--to", store, "--once"]),
        ("report", ["report", "--from-store", store, *written, *shown]),
        ("size", ["size", "--from-store", store, "--json", str(folder / "size.json")]),
        ("archive", ["archive", "--bootstrap", at, "--topics", topic, "--to", archive, "--once"]),
        ("verify-copy", ["verify", "topic", *of, "--copy-bootstrap", copy, "--copy", topic]),
        ("verify-archive", ["verify", "archive", *of, "--archive", archive]),
    ]


def make(yard: Yard, folder: Path, topic: str, source: str, target: str) -> dict[str, int]:
    """Runs all jobs; what each ended with. Their words go to `<folder>/<name>.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = {}
    for name, arguments in jobs(yard, folder, topic, source, target):
        with (folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "spark", *arguments]
            done = subprocess.run(command, stdout=log, stderr=log, timeout=ENOUGH_S, check=False)
        ended[name] = done.returncode
    return ended
