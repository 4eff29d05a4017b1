"""A definition whose schema cannot be used is refused before it is deployed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.audit.api.plans import plan
from tests.payload.schemas import file_of, set_of, write_source
from tests.web.client import Console
from tests.web.runtime_fake import definition

PATH = "/api/v1/workloads/billing/orders"


def typed(descriptor: Path, message: str) -> dict[str, Any]:
    return definition(payload={"protobuf": {"descriptor": str(descriptor), "message": message}})


@pytest.mark.parametrize(
    ("file", "message", "field", "words", "remedy"),
    [
        ("none.binpb", "acme.Order", "descriptor", "none.binpb: does not exist", "correct the path"),
        ("words.binpb", "acme.Order", "descriptor", "words.binpb: is not a descriptor set", "protoc"),
        ("", "acme.Order", "descriptor", "holds no schema", "a registry holds"),
        ("good.binpb", "acme.Ordre", "message", "no message 'acme.Ordre'", "did you mean acme.Order?"),
    ],
)
def test_an_unusable_descriptor_or_message_is_refused_at_its_field(
    console: Console, tmp_path: Path, file: str, message: str, field: str, words: str, remedy: str
) -> None:
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    if file:
        (schemas / "words.binpb").write_bytes(b"\xff\xfe words")
        (schemas / "good.binpb").write_bytes(set_of(file_of("order.proto", "Order")))
    for query in ("", "?dry_run=true"):
        answer = console.ask("PUT", PATH + query, typed(schemas / file, message))
        assert answer.status == 422, answer.json
        (problem,) = answer.json["errors"]
        assert problem["field"] == f"spec.payload.protobuf.{field}"
        assert problem["line"] == 1
        assert words in problem["message"]
        assert remedy in problem["remedy"]
    assert not console.fed.control.appended
    if file:
        good = console.ask("PUT", PATH, typed(schemas / "good.binpb", "acme.Order"))
        assert good.status == 201, good.json


def test_a_message_that_refers_to_too_many_others_is_one_problem(console: Console, tmp_path: Path) -> None:
    links = "".join(f"message M{at} {{ M{at + 1} next = 1; }}\n" for at in range(30_000))
    path = write_source(tmp_path, f'syntax = "proto3"; package acme;\n{links}message M30000 {{}}')
    timed = {"source": "protobuf", "descriptor": str(path), "message": "acme.M0", "field": "at"}
    for address, field, wanted in (
        (PATH, "payload.protobuf", typed(path, "acme.M0")),
        ("/api/v1/audit/plans/all", "timestamp", plan(timestamp=timed)),
    ):
        answer = console.ask("PUT", address, wanted)
        assert answer.status == 422, answer.json
        (problem,) = answer.json["errors"]
        assert problem["field"] == f"spec.{field}.message"
        assert "message acme.M0 refers to more than 10,000 others" in problem["message"]
        assert "name a message that refers to fewer" in problem["remedy"]


def test_a_deployment_tells_which_of_two_imports_was_taken(console: Console, tmp_path: Path) -> None:
    taken = write_source(tmp_path / "acme", 'syntax = "proto3"; message Money {}', "money.proto")
    other = write_source(tmp_path, 'syntax = "proto3"; message Money {}', "money.proto")
    text = 'syntax = "proto3"; import "money.proto"; message Order { Money total = 1; int64 at = 2; }'
    path = write_source(tmp_path / "acme", text)
    doubt = f"import 'money.proto' is {taken}, which is found first, and not {other}"
    timed = {"source": "protobuf", "descriptor": str(path), "message": "Order", "field": "at"}
    for address, wanted in (
        (PATH, typed(path, "Order")),
        ("/api/v1/audit/plans/all", plan(timestamp=timed)),
    ):
        answer = console.ask("PUT", f"{address}?dry_run=true", wanted)
        assert answer.status == 200, answer.json
        assert doubt in answer.json["doubts"]
        assert doubt in answer.json["warnings"]


@pytest.mark.parametrize(
    ("timestamp", "field", "words"),
    [
        ({"source": "protobuf", "descriptor": "/dev/ptmx", "message": "a.B"}, "descriptor", "is a device"),
        ({"source": "protobuf", "descriptor": "{}/fifo", "message": "a.B"}, "descriptor", "is a FIFO"),
        ({"source": "protobuf", "descriptor": "{}/good.binpb", "message": "a.B"}, "message", "no message"),
        ({"source": "protobuf", "descriptor": "{}/good.binpb", "message": "acme.Order"}, "field", "no field"),
        ({"source": "avro", "schema": "/dev/ptmx"}, "schema", "is a device"),
        ({"source": "avro", "schema": "{}/fifo"}, "schema", "is a FIFO"),
        ({"source": "avro", "schema": "{}/none.avsc"}, "schema", "No such file"),
    ],
)
def test_an_audit_plan_whose_schema_cannot_be_used_is_refused_by_its_field(
    console: Console, tmp_path: Path, timestamp: dict[str, str], field: str, words: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "good.binpb").write_bytes(set_of(file_of("order.proto", "Order")))
    timestamp = {name: value.format(tmp_path) for name, value in timestamp.items()}
    refused = plan(timestamp={"field": "at", **timestamp})
    for query in ("", "?dry_run=true"):
        answer = console.ask("PUT", "/api/v1/audit/plans/all" + query, refused)
        assert answer.status == 422, answer.json
        (problem,) = answer.json["errors"]
        assert problem["field"] == f"spec.timestamp.{field}"
        assert words in problem["message"]
        assert problem["remedy"]
        assert problem["line"] == 1
    assert not console.fed.control.appended
