"""What Spark's jobs say of the demo's data, as files of a folder: each job is a process of its own.

<folder>/report.html, report.json   all regions: traffic, loss, owners (also at the console's /report)
<folder>/size.json                  workers and partitions, of the loads that workers have told
<folder>/run-*/archive              the topic as Parquet files; store: what `dashboard` keeps. A folder a run,
                                    whose brokers are others than those of the runs before
<folder>/verify-*.log               the topic compared with its copy, and with its archive, record by record
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from app.topics import ControlTopics
from app.yard import Yard

ENOUGH_S = 900.0  # of one job: the first fetches the connector
TOO_LONG = 124  # what a job that took longer has ended with


def jobs(
    yard: Yard, folder: Path, run: Path, topic: str, source: str, target: str
) -> list[tuple[str, list[str]]]:
    """Name and arguments of each job, in their order. `run`: the folder of this run."""
    regions = sorted({cluster.region for cluster in yard.clusters})
    home = yard.clusters[0].region
    control = {region: yard.bootstrap(f"{region}-regional") for region in regions}
    named = [part for region, at in control.items() for part in ("--region", f"{region}={at}")]
    store, archive = str(run / "store"), str(run / "archive")
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
    run = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    commands = jobs(yard, folder, run, topic, source, target)
    return {name: _ended(arguments, folder / f"{name}.log") for name, arguments in commands}


def _ended(arguments: list[str], log: Path, within_s: float = ENOUGH_S) -> int:
    with log.open("wb") as words:
        command = [sys.executable, "-m", "spark", *arguments]
        try:
            return subprocess.run(
                command, stdout=words, stderr=words, timeout=within_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            words.write(f"it did not end within {within_s:g} s\n".encode())
            return TOO_LONG
