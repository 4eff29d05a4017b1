"""A file that cannot be read is reported with file, position and remedy, whatever the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.problems import ConfigProblem, InvalidConfiguration, read_documents
from app.config.settings import load_settings


def problems_in(text: str) -> list[ConfigProblem]:
    with pytest.raises(InvalidConfiguration) as caught:
        read_documents(text, "here.yaml")
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: b: c\n", 1, 5),
        ("ok: 1\n\tb: 2\n", 2, 1),
        ("a: 1\nb: 2\na: 3\n", 3, 1),
        ("x: 1\ny: *gone\n", 2, 4),
    ],
)
def test_a_syntax_error_names_its_line_and_column(text: str, line: int, column: int) -> None:
    (problem,) = problems_in(text)

    assert (problem.file, problem.line, problem.column) == ("here.yaml", line, column)
    assert problem.remedy


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "[" * 40 + "]" * 40, id="deeper than the bound"),
        pytest.param("{" * 3000, id="deeper than the parser"),
        pytest.param("[" * 3000 + "]" * 3000, id="deeper than the parser, and closed"),
        pytest.param("a: 1\x00", id="control character"),
    ],
)
def test_an_absurd_document_is_an_error_and_not_a_crash(text: str) -> None:
    (problem,) = problems_in(text)

    assert problem.file == "here.yaml"
    assert problem.message.startswith("not YAML")


def test_aliases_that_multiply_are_stopped_before_they_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]

    (problem,) = problems_in("\n".join(lines))

    assert "beyond all measure" in problem.message


def test_an_ordinary_alias_is_followed() -> None:
    (document,) = read_documents("a: &x {b: 1}\nc: *x\n", "here.yaml")

    assert document.data == {"a": {"b": 1}, "c": {"b": 1}}


def test_empty_documents_are_left_out_and_the_others_keep_their_lines() -> None:
    first, second = read_documents("# nothing\n---\na: 1\n---\n---\nb: 2\n", "here.yaml")

    assert (first.data, first.position(("a",))) == ({"a": 1}, (3, 4))
    assert (second.data, second.position(("b",), key=True)) == ({"b": 2}, (6, 1))


def test_json_is_read_with_positions() -> None:
    (document,) = read_documents('{\n "a": [1, true, null, 2.5],\n "b": "no"\n}\n', "here.json")

    assert document.data == {"a": [1, True, None, 2.5], "b": "no"}
    assert document.position(("b",)) == (3, 7)


def test_a_missing_value_has_the_position_of_its_nearest_parent() -> None:
    (document,) = read_documents("a:\n  b:\n    c: 1\n", "here.yaml")

    assert document.position(("a", "b", "missing")) == document.position(("a", "b"))


@given(st.text(alphabet=st.sampled_from("ab1:-[]{}&*!|>'\"%@#,? \n\t"), max_size=40))
def test_any_text_is_read_or_refused_with_a_problem(text: str) -> None:
    if "&" in text:
        text = text.replace("&", "", text.count("&") - 1)  # one anchor at most: see the test of two
    problems: list[ConfigProblem] = []
    documents = []
    try:
        documents = read_documents(text, "here.yaml")
    except InvalidConfiguration as error:
        problems = error.problems
    assert all(problem.file == "here.yaml" and problem.message for problem in problems)
    assert all(isinstance(d.data, dict | list | str | int | float) for d in documents)


def test_a_missing_file_is_reported_with_a_minimal_example(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"does not exist\n.*SWITCHYARD_CONFIG.*region: east"):
        load_settings(tmp_path / "none.yaml", {})


def test_a_folder_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"is a directory, not a file"):
        load_settings(tmp_path, {})


@pytest.mark.parametrize("raw", ["region: ost".encode("utf-16"), b"region: \xff"])
def test_a_file_that_is_not_utf_8_is_reported_with_the_byte(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "s.yaml").write_bytes(raw)

    with pytest.raises(InvalidConfiguration, match=r"is not UTF-8 \(byte \d+\)\n.*save it as UTF-8"):
        load_settings(tmp_path / "s.yaml", {})


def test_a_file_that_is_too_large_is_reported(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("# " + "x" * (4 * 1024 * 1024))

    with pytest.raises(InvalidConfiguration, match=r"larger than 4 MiB"):
        load_settings(tmp_path / "s.yaml", {})


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n---\n"])
def test_an_empty_file_is_reported_with_a_minimal_example(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)

    with pytest.raises(InvalidConfiguration, match=r"s\.yaml:1:1: error: is empty\n.*region: east"):
        load_settings(tmp_path / "s.yaml", {})
