"""YAML and JSON become plain data with positions, or are refused at their line without showing a value."""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.problems import ConfigProblem, InvalidConfiguration, read_documents
from app.config.settings import load_settings
from app.definitions.registry import load_definitions
from tests.config.examples import SETTINGS, SMALL, changed


def problem_in(text: str) -> ConfigProblem:
    with pytest.raises(InvalidConfiguration) as caught:
        read_documents(text, "here.yaml")
    (problem,) = caught.value.problems
    assert problem.remedy
    return problem


# -- what fails while a value is made --------------------------------------------------------------

TAGS = ["bool", "int", "float", "null", "timestamp", "binary", "set", "map", "seq", "python/name:hunter2"]


@pytest.mark.parametrize("tag", [f"!!{tag}" for tag in TAGS] + ["!mine", "!hunter2!x", "!<tag:a,1:hunter2>"])
def test_a_secret_with_a_tag_is_reported_at_its_line_and_never_shown(tmp_path: Path, tag: str) -> None:
    (tmp_path / "s.yaml").write_text(
        SETTINGS.replace("localhost:9093", f"localhost:9093\n    security: {{password: {tag} hunter2}}")
    )

    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(tmp_path / "s.yaml", {})

    (problem,) = caught.value.problems
    assert problem.line == 11
    assert problem.remedy
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: 1\nb: !!python/object/apply:os.getcwd []\n", 2, 4),
        ("a: 1\nb: !mine {c: 1}\n", 2, 4),
        ("a: 1\n!mine b: 1\n", 2, 1),
        ("a: 1\nb: !!timestamp 2026-01-01\n", 2, 4),
        ("a: 1\nb: !!omap [c: 1]\n", 2, 4),
    ],
)
def test_a_foreign_tag_is_an_error_at_its_place(text: str, line: int, column: int) -> None:
    problem = problem_in(text)

    assert (problem.line, problem.column) == (line, column)
    assert "tag" in problem.message


@pytest.mark.parametrize(
    ("text", "value"),
    [("!!str 12", "12"), ("!!int 12", 12), ("!!float 1.5", 1.5), ("!!bool true", True), ("! 12", 12),
     ("2026-01-01", "2026-01-01"), ("0x1F", 31), ("-1", -1), ("1e3", 1000.0), ("yes", "yes"), ("~", None),
     ("=", "="), ("'1'", "1")],
)  # fmt: skip
def test_scalars_have_their_yaml_types(text: str, value: Any) -> None:
    (document,) = read_documents(f"a: {text}\n", "here.yaml")

    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: \x01", 2),
        ("a: 1\n---\nb: " + "[" * 300, 3),
        ("a: 1\nb: [" + "[" * 40 + "]" * 41, 2),
        ("a: 1\nb: &x [*x]\n", 2),
        ("- a\n" + "- " * 5000, 2),
        ('a: 1\nb: "\\UFFFFFFFF"\n', 2),
        ("a: 1\n? [b]\n: 1\n", 2),
        ("a: 1\n<<: 2\n", 2),
        ('a: 1\nb: "\\ud83d"\n', 2),
    ],
)
def test_unreadable_yaml_is_reported_with_its_line(text: str, line: int) -> None:
    assert problem_in(text).line == line


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("1: a\n'1': b\n", 2, "1"),
        ("a:\n  true: 1\n  'true': 2\n", 3, "a.true"),
        ('{"a": 1,\n "b": {"c": 1,\n "c": 2}}', 3, "b.c"),
        ("a: [{b: 1}, {b: 1, b: 2}]\n", 1, "a.1.b"),
        ("a: &x {}\nb:\n  <<: *x\n  <<: *x\n", 4, "b.<<"),
    ],
)
def test_a_repeated_key_is_reported_at_its_second_place(text: str, line: int, field: str) -> None:
    problem = problem_in(text)

    assert (problem.line, problem.field) == (line, field)
    assert "twice" in problem.message


def test_merged_mappings_fill_in_missing_keys_the_first_before_the_second() -> None:
    text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2, d: 2}\nz:\n  <<: [*x, *y]\n  d: 3\n"
    (document,) = read_documents(text, "here.yaml")

    assert document.data["z"] == {"a": 1, "b": 1, "c": 2, "d": 3}
    assert document.position(("z", "c")) == (2, 17)
    assert document.position(("z", "d"), key=True) == (5, 3)


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_an_emoji_that_json_escapes_is_one_character(tmp_path: Path, suffix: str, start: str) -> None:
    document = json.dumps(changed("metadata/owner", "team 😀"))
    assert "\\ud83d\\ude00" in document
    (tmp_path / f"a.{suffix}").write_text(start + document, encoding="utf-8")

    (workload,), _ = load_definitions([tmp_path])

    assert workload.metadata.owner == "team 😀"
    assert workload.etag()


def test_an_emoji_that_yaml_escapes_as_json_does_is_one_character() -> None:
    (document,) = read_documents('a: "\\ud83d\\ude00"\n', "here.yaml")

    assert document.data == {"a": "😀"}


texts = st.text(max_size=8) | st.sampled_from(["{", '"', "\\", "\n", "\x00", "😀", "a: b", "\u2028", "/"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(texts, values, max_size=5), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_every_json_document_is_read_as_json(data: dict[str, Any], ascii_only: bool, indent: Any) -> None:
    text = json.dumps(data, ensure_ascii=ascii_only, indent=indent, allow_nan=True)
    if re.search(r"Infinity", text):
        text = text.replace("-Infinity", "0").replace("Infinity", "0")
        data = json.loads(text)

    (document,) = read_documents(text, "here.json")

    assert document.data == data


plain_texts = st.text("abc def", min_size=1, max_size=5).map(lambda text: f"x{text}x")
simple = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | plain_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_texts, inner, max_size=3),
    max_leaves=12,
)


def paths(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(below for name, inner in items for below in paths(inner, (*path, name)))]


@given(st.dictionaries(plain_texts, simple, max_size=4), st.sampled_from([None, 1, 3]))
def test_json_has_the_same_positions_whether_it_is_read_as_json_or_as_yaml(
    data: dict[str, Any], indent: int | None
) -> None:
    text = json.dumps(data, indent=indent)
    (as_json,) = read_documents(text, "here.json")
    (as_yaml,) = read_documents(text + "\n---\n", "here.yaml")  # a second document is no JSON

    assert as_json.data == as_yaml.data == data
    for path in paths(data):
        assert as_json.position(path) == as_yaml.position(path)
        assert as_json.position(path, key=True) == as_yaml.position(path, key=True)


def test_a_mistake_in_a_json_file_is_reported_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(changed("spec/start", "middle", base=SMALL), indent=1))

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([tmp_path])

    (problem,) = caught.value.problems
    assert '"start"' in (tmp_path / "a.json").read_text().splitlines()[problem.line - 1]
