"""How tests are divided into suites and parts, and which folders of tests a change runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.changed import ROOT, folders_of
from tests.conftest import divide, parse_part
from tests.guarantees import PAGE, files_of, load, page, suites_of

MINUTES = st.dictionaries(st.text(max_size=3), st.floats(0.05, 6.0), max_size=60)


@given(MINUTES, st.integers(1, 9))
def test_every_test_is_in_one_part_and_no_part_is_much_longer_than_another(
    minutes: dict[str, float], parts: int
) -> None:
    found = divide(minutes, parts)
    assert len(found) == parts
    assert sorted(name for part in found for name in part) == sorted(minutes)
    lengths = [sum(minutes[name] for name in part) for part in found]
    assert max(lengths) - min(lengths) <= max(minutes.values(), default=0.0) + 1e-6
    assert divide(dict(reversed(minutes.items())), parts) == found


def test_a_part_is_a_number_and_the_count_of_parts() -> None:
    assert parse_part("3/8") == (3, 8)
    for text in ("0/8", "9/8", "3", "3/", "/8", "a/b", "-1/8"):
        with pytest.raises(ValueError, match=r".+"):
            parse_part(text)


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        (["app/dispatch/pump/intake.py", "tests/dispatch/pump/rig.py"], ["tests/dispatch/pump"]),
        (["app/dispatch/definition.py", "app/dispatch/pump/intake.py"], ["tests/dispatch"]),
        (["app/web/static/console.css"], ["tests/web"]),
        (["spark/jobs/report.py", "docker/worker.Dockerfile"], ["tests/docker", "tests/spark"]),
        (["agents/dispatch.py", "tables/trackers.py"], ["tests/system"]),
        (["README.md", "docs/a.md", "app/main.py", "tests/conftest.py", "tests/bench/tracker.py"], []),
    ],
)
def test_a_change_runs_the_nearest_folder_of_tests(files: list[str], folders: list[str]) -> None:
    assert folders_of(files, ROOT) == folders


def test_a_change_in_a_room_without_tests_runs_the_parents_tests(tmp_path: Path) -> None:
    (tmp_path / "tests" / "kafka").mkdir(parents=True)
    assert folders_of(["app/kafka/client/deep/inside/x.py"], tmp_path) == ["tests/kafka"]


def test_every_guarantee_is_held_by_tests_and_says_so() -> None:
    guarantees = [one for chapter in load().values() for one in chapter]
    for one in guarantees:
        files = [file for place in one.tests for file in files_of(place)]
        assert files, one.text
        assert all(suites_of(file) for file in files), one.text
        assert bool(one.held_by("test")) != bool(one.deep), f"{one.text}: no test of make test, and no reason"
    assert PAGE.read_text() == page(), "docs/tests.md is not current: run python -m tests.guarantees"


def test_the_suites_of_a_file_follow_from_the_marks_in_its_source(tmp_path: Path) -> None:
    def suites(source: str) -> set[str]:
        (tmp_path / "test_a.py").write_text(source)
        return suites_of(tmp_path / "test_a.py")

    deep = "@pytest.mark.deep(minutes=1)\n"
    assert suites("def test_a(): ...") == {"test"}
    assert suites(f"{deep}async def test_a(): ...\nclass Helper: ...") == {"test-deep"}
    assert suites(f"{deep}def test_a(): ...\nTestB = Machine.TestCase") == {"test", "test-deep"}
    some = "@pytest.mark.parametrize('a', [1, pytest.param(2, marks=pytest.mark.deep(minutes=1))])\n"
    assert suites(f"{some}def test_a(a): ...") == {"test", "test-deep"}
