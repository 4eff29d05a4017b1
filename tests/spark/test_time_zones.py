"""Dates and hours are UTC, whatever time zone Spark's configuration, Java and Python have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from app.archive.log import Archive
from app.audit.folds.tier import PlanBounds
from spark.dashboard import daily
from spark.dashboard.store import TRAFFICS, VERDICTS, files_of
from spark.dashboard.summary import summarize
from spark.session import make_session
from tests.spark.archiving import archive_rows
from tests.spark.conftest import HOUR_MS, NOON_MS, SETTINGS, row
from tests.spark.regions import Region, audit_plan, window
from tests.spark.test_dashboard import NOW_MS, take

ZONE = "Asia/Dhaka"  # six hours before UTC
EARLY_MS = NOON_MS - 9 * HOUR_MS - HOUR_MS // 2  # 02:30 UTC
LATE_MS = NOON_MS + 8 * HOUR_MS  # 20:00 UTC, the next day in Dhaka
CONFIGURED = {**SETTINGS, "spark.sql.session.timeZone": ZONE}


@pytest.fixture
def configured(session: SparkSession) -> Iterator[SparkSession]:
    """A job's session where the configuration has another time zone."""
    yield make_session("tests", CONFIGURED)
    session.conf.set("spark.sql.session.timeZone", "UTC")


def check_archive(session: SparkSession, archive: Archive) -> None:
    """Archives a record of 02:30 and one of 20:00; both lie in their hours."""
    archive_rows(session, archive, row(0, at_ms=EARLY_MS), row(1, at_ms=LATE_MS))
    places = {(file.date, file.hour) for file in archive.state().files.values()}
    assert places == {("2025-11-22", "02"), ("2025-11-22", "20")}


def check_dashboard(session: SparkSession, root: Path) -> None:
    """Computes a window of 20:00; traffic and verdicts have its date."""
    east = Region("east")
    east.window("orders", "regional", "east-regional", LATE_MS, window(10, position=0))
    east.put("audit_plans", "audit:all", audit_plan())
    take(session, root, east)
    stores = daily.open_stores(root)
    assert daily.bring_up(session, root, stores, NOW_MS, PlanBounds()) == ["2025-11-22"]
    state = Archive.open(root / daily.GLOBAL).state()
    assert {file.date for file in files_of(state, TRAFFICS)} == {"2025-11-22"}
    assert {file.date for file in files_of(state, VERDICTS)} <= {"2025-11-22"}
    found = summarize(session, root, NOON_MS, LATE_MS + HOUR_MS, LATE_MS + HOUR_MS)
    assert found["totals"]["records"] == 10


def test_an_archive_and_a_store_are_in_utc_where_spark_has_another_zone(
    configured: SparkSession, archive: Archive, tmp_path: Path
) -> None:
    check_archive(configured, archive)
    check_dashboard(configured, tmp_path / "dash")


@pytest.mark.deep(minutes=0.7)
def test_an_archive_and_a_store_are_in_utc_where_defaults_and_processes_have_another_zone(
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"spark.sql.session.timeZone {ZONE}\n")
    code = (
        "import sys; from pathlib import Path; from app.archive.log import Archive;"
        "from spark.session import make_session; from tests.spark.conftest import SETTINGS;"
        "from tests.spark.test_time_zones import check_archive, check_dashboard;"
        "root = Path(sys.argv[1]); session = make_session('test', SETTINGS);"
        "check_archive(session, Archive.create(root / 'archive', 'cluster'));"
        "check_dashboard(session, root / 'dash')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "TZ": ZONE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
