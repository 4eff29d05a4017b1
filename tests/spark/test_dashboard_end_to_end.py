"""On real Kafka: a job that is killed folds the tables of two regions, and the report is right.

pytest tests/spark/test_dashboard_end_to_end.py        (or with SWITCHYARD_TEST_BOOTSTRAP=host:port)
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from app.archive.log import Archive
from spark.__main__ import main
from tests.spark.conftest import NOON_MS
from tests.spark.processes import job, until
from tests.spark.regions import Region
from tests.spark.test_dashboard import two_regions


async def fill(bootstrap: str, *regions: Region) -> None:
    """Creates the regions' topics and writes their records."""
    rows = [row for region in regions for row in region.rows]
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topics = sorted({row[0] for row in rows})
        await admin.create_topics([NewTopic(name, 1, 1) for name in topics])
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for topic, _, _, at_ms, _, key, value, _ in rows:
            await producer.send_and_wait(topic, value, key, timestamp_ms=at_ms)
    finally:
        await producer.stop()


@pytest.mark.deep(minutes=2.9)
def test_a_killed_job_counts_nothing_twice_and_the_report_says_what_the_tables_say(
    bootstrap: str, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{side}{topic_name.removeprefix('test-')}" for side in ("e", "w")]
    regions = two_regions(*names)
    asyncio.run(fill(bootstrap, *regions))
    root = tmp_path / "dash"
    command = ["dashboard", "--to", str(root), "--once"]
    for name in names:
        command += ["--region", f"{name}={bootstrap}"]
    with job(*command, "--round", "8") as process:
        until(lambda: any(root.glob("*/log/*.json")), process, "a round was made")
        process.kill()
        process.wait()
        assert main(command) == 0
    assert main(command) == 0
    capsys.readouterr()
    for name in names:
        assert Archive.open(root / name).state().gaps == ()
    html, json_report = tmp_path / "report.html", tmp_path / "report.json"
    reporting = ["report", "--from-store", str(root), "--html", str(html), "--json", str(json_report)]
    assert main([*reporting, "--until", str(NOON_MS + 86_400_000)]) == 0
    found = json.loads(json_report.read_text())
    assert found["totals"] == {"records": 40, "missing": 3, "extra": 0, "topics": 1, "windows": 3}
    assert found["workloads"][0]["core_hours"] == pytest.approx(0.5 * 300 / 3600, abs=1e-3)
    assert found["workloads"][0]["lag_messages"] == 6
    assert "east-regional" in html.read_text()
    assert main(["size", "--from-store", str(root), "--json", str(json_report)]) == 0
    assert json.loads(json_report.read_text())["fleets"][0]["jobs"] == 1
