"""Mistakes that were once missed, reported badly, or crashed: each in its smallest case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.config.problems import InvalidConfiguration, read_documents
from app.config.quantities import parse_size
from app.config.settings import load_settings
from app.definitions.plan import plan
from app.definitions.registry import json_schema, load_definitions, parse_definition
from app.dispatch.definition import Workload
from tests.config.examples import SETTINGS, SMALL, changed


def settings_text(tmp_path: Path, text: str, **env: str) -> str:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(tmp_path / "s.yaml", env)
    return str(caught.value)


def definition_text(document: Any) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_definition(document)
    return str(caught.value)


def with_security(text: str) -> str:
    return SETTINGS.replace("localhost:9093", f"localhost:9093\n    security: {text}")


# -- secrets ---------------------------------------------------------------------------------------


def test_a_repeated_secret_is_not_shown(tmp_path: Path) -> None:
    assert "hunter" not in settings_text(tmp_path, with_security("{password: hunter2, password: hunter3}"))


def test_a_secret_that_begins_with_a_star_is_not_shown(tmp_path: Path) -> None:
    assert "hunter2" not in settings_text(tmp_path, with_security("{password: *hunter2}"))


def test_a_secret_in_the_place_of_the_whole_security_is_not_shown(tmp_path: Path) -> None:
    assert "hunter2" not in settings_text(tmp_path, with_security("hunter2"))


@pytest.mark.parametrize(
    "password",
    ["hunter2", "sesame/hunter2", "hunter2" + 90 * "s", "hunter2" + 20_000 * "s", "hunter2@sesame"],
)
def test_a_secret_in_an_address_is_not_shown(tmp_path: Path, password: str) -> None:
    text = SETTINGS.replace("localhost:9093", f"sasl://me:{password}@localhost:9093")
    shown = settings_text(tmp_path, text)
    assert "***@" in shown
    assert not any(part in shown for part in ("hunter2", "sesame", "sss"))


@pytest.mark.parametrize(
    "security",
    [
        pytest.param("{protocol: sasl_ssl}", id="no username and password"),
        pytest.param("{password: 'env:P', username: 'env:U'}", id="credentials that plaintext never sends"),
        pytest.param("{protocol: ssl, ca: /does/not/exist.pem}", id="a file that is not there"),
    ],
)
def test_security_that_cannot_secure_is_refused(tmp_path: Path, security: str) -> None:
    assert "security" in settings_text(tmp_path, with_security(security))


# -- crashes instead of problems -------------------------------------------------------------------


@pytest.mark.parametrize(("path", "value"), [("spec/ordering", []), ("spec/delay", {}), ("spec/delay", [1])])
def test_a_list_or_mapping_in_the_place_of_a_word_is_a_problem(path: str, value: Any) -> None:
    assert path.replace("/", ".") in definition_text(changed(path, value))


def test_a_list_in_the_place_of_the_control_cluster_is_a_problem(tmp_path: Path) -> None:
    assert "control_cluster" in settings_text(tmp_path, SETTINGS + "control_cluster: []\n")


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec/target/timeout", 10**400), ("spec/flow/bytes_per_second", "9" * 400 + "MiB")],
)
def test_a_number_beyond_all_measure_is_a_problem(path: str, value: Any) -> None:
    assert path.replace("/", ".") in definition_text(changed(path, value))


def test_an_anchor_that_is_defined_again_is_accepted() -> None:
    (document,) = read_documents("a: &x 1\nb: &x 2\n", "here.yaml")
    assert document.data == {"a": 1, "b": 2}


# -- the right place and words ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int", "str", "a(b", "a[b"])
def test_an_unknown_field_is_named_whatever_it_is_called(name: str) -> None:
    assert f"spec.{name}: unknown field" in definition_text(changed(f"spec/{name}", 1))


@pytest.mark.parametrize("path", ["spec/head_of_line", "spec/catch_up"])
def test_a_field_has_one_name_only(path: str) -> None:
    assert "unknown field" in definition_text(changed(path, {"lag": 1, "rate": 1} if "catch" in path else {}))


def test_one_mistake_is_reported_once() -> None:
    assert definition_text(changed("spec/flow/max_inflight", "adaptve")).count("error:") == 1


def test_a_mistake_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    assert "SWITCHYARD_WEB_PORT" in settings_text(tmp_path, SETTINGS, SWITCHYARD_WEB_PORT="abc")


def test_every_wrong_address_of_a_list_is_reported(tmp_path: Path) -> None:
    text = settings_text(tmp_path, SETTINGS.replace("localhost:9093", "[one, 'two:2', three]"))
    assert "one" in text
    assert "three" in text


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(SMALL))
    assert len(load_definitions([tmp_path, tmp_path / "a.yaml"])[0]) == 1


# -- values that are taken and mean something else -------------------------------------------------


@pytest.mark.parametrize("path", ["spec/flow/max_inflight", "spec/tracker/capacity"])
def test_true_is_no_number(path: str) -> None:
    assert path.replace("/", ".") in definition_text(changed(path, True))


def test_a_rate_is_finite() -> None:
    assert "messages_per_second" in definition_text(changed("spec/flow/messages_per_second", float("inf")))


@pytest.mark.parametrize("address", ["billing:0", "billing:99999", "ipv4:999.1.1.1:5", "ipv6:nowhere"])
def test_an_impossible_address_is_refused(address: str) -> None:
    assert "spec.target.address" in definition_text(changed("spec/target/address", address))


@pytest.mark.parametrize("duration", ["1 0s", "1s1m", "1m1m"])
def test_an_odd_duration_is_refused(duration: str) -> None:
    assert "spec.target.timeout" in definition_text(changed("spec/target/timeout", duration))


def test_a_size_is_exact_or_refused() -> None:
    assert parse_size("9007199254740993") == 9007199254740993
    with pytest.raises(ValueError, match=r"size|bytes"):
        parse_size("1.5B")


def test_a_duration_finer_than_a_millisecond_is_refused() -> None:
    assert "spec.target.timeout" in definition_text(changed("spec/target/timeout", 0.0014))


def test_a_duration_is_unchanged_after_the_wire() -> None:
    before = parse_definition(changed("spec/target/timeout", "1001ms"))[0]
    assert Workload.from_wire(before.to_wire()).spec.target == before.spec.target


# -- promises of the interface ---------------------------------------------------------------------


def test_a_delay_of_zero_may_have_a_unit() -> None:
    assert parse_definition(changed("spec/delay", "0ms"))[0].spec.delay == 0


def test_port_0_is_a_free_port(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SETTINGS + "web: {port: 0}\n")
    assert load_settings(tmp_path / "s.yaml", {}).web.port > 0


def test_every_reference_in_the_json_schema_leads_somewhere() -> None:
    schema = json_schema()
    references = [part.split('"')[0] for part in json.dumps(schema).split('"$ref": "#/')[1:]]
    assert references
    for reference in references:
        at: Any = schema
        for part in reference.split("/"):
            assert part in at, reference
            at = at[part]


def test_the_json_schema_takes_a_duration_as_people_write_it() -> None:
    text = json.dumps(json_schema())
    timeout = text.split('"timeout": {', 1)[1].split('"title": "Timeout"', 1)[0]
    assert '"string"' in timeout


def test_two_workloads_never_share_a_dead_letter_queue() -> None:
    one, two = (
        parse_definition({**SMALL, "metadata": {"group": group, "topic": topic, "cluster": "c"}})[0]
        for topic, group in (("a__b", "c"), ("a", "b__c"))
    )
    assert one.dlq_topic() == two.dlq_topic()
    assert plan({}, [one, two]).conflicts
    assert plan({one.key: one}, [two]).conflicts
