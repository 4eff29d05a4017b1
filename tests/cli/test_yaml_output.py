"""YAML of the command line is the same data for readers of YAML 1.1 and of 1.2."""

from __future__ import annotations

import io
from typing import Any

import pytest
import yaml as yaml_1_1
from hypothesis import given
from hypothesis import strategies as st

from app.cli.yaml_output import yaml_writer
from app.config.problems import read_documents

AMBIGUOUS = ["on", "On", "no", "yes", "off", "y", "n", "Y", "N", "true", "null", "~", "=", "<<", "",
             "2026-01-31", "2026-01-31T12:00:00Z", "1_000", "1:30", "1:30.5", "190:20:30", "0o17", "017",
             "08", "0x1F", "0b11", "1e3", "1.0e3",
             ".5", "+.5", "1.", "-0", ".inf", ".nan", "-", "?"]  # fmt: skip
PLAIN = ["orders", "10m", "127.0.0.1:50051", "dns:///billing:8443", "payments\\..*", "1.2.3", "{topic}"]


def written(data: Any) -> str:
    text = io.StringIO()
    yaml_writer().dump(data, text)
    return text.getvalue()


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_text_that_either_version_reads_as_something_else_is_quoted_as_value_and_as_key(text: str) -> None:
    out = written({"value": text, "keys": {text: 1}, "list": [text]})
    assert out.count(f"'{text}'") == 3
    assert yaml_1_1.safe_load(out) == {"value": text, "keys": {text: 1}, "list": [text]}


@pytest.mark.parametrize("text", PLAIN[:4])
def test_other_text_is_not_quoted(text: str) -> None:
    assert written({"value": text}) == f"value: {text}\n"


@given(
    st.dictionaries(
        st.sampled_from(AMBIGUOUS + PLAIN),
        st.sampled_from(AMBIGUOUS + PLAIN) | st.booleans() | st.none() | st.integers()
        | st.floats(allow_nan=False)
        | st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=12),
    )
)  # fmt: skip
def test_readers_of_both_versions_read_what_was_written(data: dict[str, Any]) -> None:
    out = written({"data": data})
    assert yaml_1_1.safe_load(out) == {"data": data}
    (document,) = read_documents(out, "export.yaml")
    assert document.data == {"data": data}
