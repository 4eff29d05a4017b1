"""A definition is checked against the worker's credentials, tokens and rules when it is deployed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web import runtime_fake
from tests.web.client import Console


def secure(credentials: str) -> dict[str, Any]:
    definition: dict[str, Any] = runtime_fake.definition()
    definition["spec"]["target"]["tls"] = {"credentials": credentials}
    return definition


def put(console: Console, definition: dict[str, Any], query: str = "") -> Any:
    metadata = definition["metadata"]
    return console.ask("PUT", f"/api/v1/workloads/{metadata['group']}/{metadata['topic']}{query}", definition)


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_credentials_that_the_worker_does_not_have_are_refused_with_similar_ones(
    console: Console, query: str
) -> None:
    answer = put(console, secure("biling"), query)
    assert answer.status == 422
    assert "did you mean billing?" in answer.text
    assert "spec.target.tls.credentials" in answer.text
    assert not console.fed.control.appended


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_credentials_whose_files_are_wrong_are_taken_with_a_warning(console: Console, query: str) -> None:
    answer = put(console, secure("billing"), query)
    assert answer.status in {200, 201}, answer.text
    (warning,) = answer.json["warnings"]
    assert "cannot read credentials 'billing' now" in str(warning)
    assert "/missing/ca.pem" in str(warning)


def with_metadata(**metadata: str) -> dict[str, Any]:
    definition: dict[str, Any] = runtime_fake.definition()
    definition["spec"]["target"] |= {"tls": {}, "metadata": metadata}
    return definition


def test_a_token_that_cannot_be_read_is_taken_with_a_warning_and_others_are_refused(console: Console) -> None:
    answer = put(console, with_metadata(authorization="Bearer secret:billing"))
    assert answer.status in {200, 201}, answer.text
    (warning,) = answer.json["warnings"]
    assert "cannot read token 'billing' now: file /missing/token" in str(warning)
    refused = put(console, with_metadata(authorization="Bearer secret:biling"))
    assert (refused.status, "did you mean billing?" in refused.text) == (422, True)


def test_metadata_that_the_worker_does_not_allow_is_refused_by_its_name(console: Console) -> None:
    answer = put(console, with_metadata(**{"x-internal-user": "a"}))
    assert answer.status == 422
    assert "spec.target.metadata.x-internal-user" in answer.text
    assert "receivers.metadata of each switchyard.yaml" in answer.text
