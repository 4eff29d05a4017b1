"""Which files `verify` leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.__main__ import main
from spark.jobs import verify
from spark.schemas import FINDING

COMMAND = ["verify", "archive", "--bootstrap", "127.0.0.1:1", "--topic", "orders", "--archive", "/nowhere"]
Command = Callable[..., int]


@pytest.fixture
def command(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the job on a cluster and an archive that differ in one record."""

    def run(spark: SparkSession, _options: object, _folder: Path, write: verify.Write) -> int:
        write(spark.createDataFrame([("missing", 0, 7, None)], FINDING))
        return 1

    monkeypatch.setattr(verify, "_archive", run)
    monkeypatch.setattr(verify.common, "session", lambda _name, _options: session)
    monkeypatch.setattr(verify, "switchyard_home", lambda: tmp_path / "home")
    return lambda *more: main([*COMMAND, *more])


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_findings_are_printed_and_not_kept_without_a_folder(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == verify.EXIT_MISSING
    result = json.loads(capsys.readouterr().out)
    assert (result["records"], result["findings"], result["folder"]) == (1, {"missing": 1}, None)
    assert result["examples"][0]["source_offset"] == 7
    assert files(tmp_path / "home") == []


def test_findings_are_kept_in_the_given_folder(command: Command, tmp_path: Path) -> None:
    assert command("--findings", str(tmp_path / "kept")) == verify.EXIT_MISSING
    assert [path for path in files(tmp_path / "kept") if path.suffix == ".parquet"]
    assert not (tmp_path / "home").exists()
