"""Workload definitions: all fields are checked at once, and fields that are not in force are reported."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.problems import InvalidConfiguration
from app.config.receiver_rules import Groups, ReceiverRules
from app.definitions.registry import load_definitions, parse_definition
from app.dispatch.definition import Workload
from app.failover.topology import Layout, Site
from tests.config.examples import FULL, REGIONS, SMALL, changed

NORTH = Site("north", "aggregate")


def fields(document: Any, **options: Any) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_definition(document, **options)
    return [problem.field for problem in caught.value.problems if problem.severity == "error"]


def text_of(document: Any, **options: Any) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_definition(document, **options)
    return str(caught.value)


def test_a_small_definition_has_sane_defaults_and_no_warning() -> None:
    workload, warnings = parse_definition(SMALL)
    spec = workload.spec

    assert warnings == []
    assert (spec.target.contract, spec.target.timeout, spec.ordering) == ("unary", 10.0, "none")
    assert (spec.flow.max_inflight, spec.tracker.capacity, spec.dlq.enabled) == ("adaptive", 10_000, True)
    assert (spec.retry, spec.delay, spec.start) == ((), 0.0, "earliest")


def test_the_names_derived_from_a_workload() -> None:
    workload, _ = parse_definition(changed("spec/retry", [{"delay": "1m"}, {"delay": "10m"}]))

    assert workload.key == "billing/orders"
    assert workload.retry_topics() == ("orders__billing__retry_1", "orders__billing__retry_2")
    assert workload.dlq_topic() == "orders__billing__dlq"
    assert workload.method() == "/kafka.consumerproxy.billing/orders"
    assert parse_definition(FULL)[0].method() == "/acme.Billing/Take"


def test_every_field_is_in_force_and_none_warns() -> None:
    _, warnings = parse_definition(FULL, clusters=["east-aggregate"], layout=REGIONS)

    assert warnings == []


MODE: list[tuple[dict[str, Any], str, str]] = [
    ({"spec/primary": "east"}, "spec.primary", "has no meaning without a mode"),
    ({"spec/mode": "active-active", "spec/primary": "eats"}, "spec.primary", "did you mean east?"),
    ({"spec/mode": "active-passive", "metadata/cluster": "north-aggregate"}, "metadata.cluster",
     "each region reads its own cluster: region west has 2 clusters of tier aggregate"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "field", "message"), MODE)
def test_a_mode_that_cannot_be_is_refused(edits: dict[str, str], field: str, message: str) -> None:
    document = SMALL
    for path, value in edits.items():
        document = changed(path, value, base=document)
    two = {**REGIONS.sites, "west-second": Site("west", "aggregate"), "north-aggregate": NORTH}
    regions = Layout("west", two, "west-regional") if "north" in str(edits) else REGIONS

    assert fields(document, layout=regions) == [field]
    assert message in text_of(document, layout=regions)


def test_a_mode_on_a_regional_cluster_warns_that_each_region_has_different_messages() -> None:
    document = changed("spec/mode", "active-active", base=changed("metadata/cluster", "east-regional"))
    _, warnings = parse_definition(document, layout=REGIONS)

    assert ["there each region has different messages" in warning.message for warning in warnings] == [True]


def test_an_unknown_kind_is_answered_with_a_similar_one() -> None:
    assert "did you mean Workload?" in text_of(changed("kind", "Worklod"))


@pytest.mark.parametrize(
    ("path", "low", "high", "below", "above"),
    [
        ("spec/flow/max_inflight", 1, 100_000, 0, 100_001),
        ("spec/tracker/capacity", 1, 1_000_000, 0, 1_000_001),
        ("spec/target/timeout", "1ms", "1h", "0s", "3601s"),
    ],
)
def test_bounds_are_inclusive(path: str, low: Any, high: Any, below: Any, above: Any) -> None:
    parse_definition(changed(path, low))
    parse_definition(changed(path, high))
    for beyond in (below, above):
        assert path.replace("/", ".") in fields(changed(path, beyond))


@pytest.mark.parametrize(
    ("tier", "field"),
    [({"delay": "31d"}, "spec.retry.0.delay"), ({"delay": "1s", "attempts": 0}, "spec.retry.0.attempts"),
     ({"delay": "1s", "attempts": 1001}, "spec.retry.0.attempts"), ({"attempts": 3}, "spec.retry.0.delay")],
)  # fmt: skip
def test_a_retry_tier_out_of_bounds_is_named_by_its_place_in_the_list(
    tier: dict[str, Any], field: str
) -> None:
    assert fields(changed("spec/retry", [tier])) == [field]


def test_a_retry_tier_may_wait_not_at_all_and_thirty_days() -> None:
    workload, _ = parse_definition(
        changed("spec/retry", [{"delay": 0, "attempts": 1}, {"delay": "30d", "attempts": 1000}])
    )

    assert [tier.delay for tier in workload.spec.retry] == [0, 30 * 86_400]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ö", ".", "..", "x" * 250, 7, None, ["a"], "a\n"])
@pytest.mark.parametrize("field", ["group", "topic"])
def test_an_invalid_name_is_refused(field: str, name: Any) -> None:
    assert f"metadata.{field}" in fields(changed(f"metadata/{field}", name))


@pytest.mark.parametrize("topic_chars", [200, 201, 237])
def test_a_topics_name_may_be_as_long_as_the_names_that_are_derived_from_it_allow(topic_chars: int) -> None:
    def named(group_chars: int) -> dict[str, Any]:
        document = changed("metadata/topic", "t" * topic_chars)
        document["metadata"]["group"] = "g" * group_chars
        document["spec"]["retry"] = [{"delay": "1s"}]
        return document

    fits = 249 - topic_chars - len("____retry_1")
    workload, _ = parse_definition(named(fits))
    assert len(workload.retry_topics()[0]) == 249
    text = text_of(named(fits + 3))
    longest = f"{'t' * topic_chars}__{'g' * (fits + 3)}__retry_1"
    assert f"its topic {longest} would have 252 characters, and Kafka allows 249" in text
    assert "shorten the group's name by 3 characters" in text


@pytest.mark.parametrize("topic_chars", [239, 249])
def test_a_topic_whose_derived_names_fit_with_no_group_is_refused_with_another_remedy(
    topic_chars: int,
) -> None:
    text = text_of(changed("metadata/topic", "t" * topic_chars))
    assert "metadata.topic: its topic tttt" in text
    assert "have a route copy the topic to one with a shorter name" in text


@pytest.mark.parametrize(
    "address", ["billing:443", "dns:///billing:443", "dns://8.8.8.8/b:1", "[::1]:443", "ipv4:10.0.0.1:443",
                "ipv6:[2001:db8::1]:443", "unix:/run/billing.sock", "unix:///run/billing.sock",
                "one:443,two:443", "srv:///_grpc._tcp.billing.example"],
)  # fmt: skip
def test_the_addresses_grpc_knows_are_taken(address: str) -> None:
    assert parse_definition(changed("spec/target/address", address))[0].spec.target.address == address


@pytest.mark.parametrize("address", ["", "billing", "http://billing:443", "billing:http", "b c:1", 443, None])
def test_other_addresses_are_refused(address: Any) -> None:
    assert fields(changed("spec/target/address", address)) == ["spec.target.address"]


def with_grpcio(address: str) -> dict[str, Any]:
    document = changed("spec/target/address", address)
    document["spec"]["target"]["transport"] = "grpc"
    return document


@pytest.mark.parametrize(
    "address", ["billing:443", "dns:///billing:443", "dns://8.8.8.8/b:1", "ipv4:10.0.0.1:443,10.0.0.2:443",
                "ipv6:[::1]:1,[::2]:2", "unix:/run/billing.sock"],
)  # fmt: skip
def test_grpcio_takes_one_name_or_a_list_of_ip_addresses(address: str) -> None:
    assert parse_definition(with_grpcio(address))[0].spec.target.transport == "grpc"


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("one:443,two:443", "is a list that may have names"),
        ("dns:///one:443,two:443", "is a list that may have names"),
        ("10.0.0.1:443,10.0.0.2:443", "is a list that may have names"),
        ("srv:///_grpc._tcp.billing.example", "names SRV records"),
    ],
)
def test_what_only_the_http2_client_reads_is_refused_for_grpcio(address: str, what: str) -> None:
    text = text_of(with_grpcio(address))
    assert f"spec.target.address: {what}, which grpcio cannot read (got {address!r})" in text
    assert "-> write transport: http2, or one host:port" in text


def test_zones_need_endpoints_that_our_own_client_reads() -> None:
    document = changed("spec/target/zones", {"eu-1a": "one:443", "eu-1b": "dns://10.0.0.53/two:443"})
    text = text_of(document)
    assert "spec.target.zones.eu-1b: names a DNS server, which only grpcio can ask" in text
    assert "eu-1a" not in text
    document["spec"]["target"]["transport"] = "grpc"
    assert "spec.target.zones: need endpoints, which grpcio does not show" in text_of(document)
    document = changed("spec/target/zones", {"eu-1a": "one:443"})
    assert parse_definition(document)[0].spec.target.zones == {"eu-1a": "one:443"}
    assert "spec.target.zones.eu-1a" in text_of(changed("spec/target/zones", {"eu-1a": "nowhere"}))


def test_the_targets_of_an_isolation_are_refused_for_grpcio_likewise() -> None:
    document = with_grpcio("billing:443")
    targets = [{"zone": "a", "address": "a:1"}, {"zone": "b", "address": "b:1,c:1"}]
    document["spec"]["isolation"] = {"zone": "x-zone", "targets": targets}
    assert fields(document) == ["spec.isolation.targets.1.address"]


@pytest.mark.parametrize(
    "method", ["Take", "acme.Billing/Take", "/acme.Billing", "/acme.Billing/", "/a/b/c", 7]
)
def test_an_invalid_grpc_method_is_refused(method: Any) -> None:
    assert fields(changed("spec/target/method", method)) == ["spec.target.method"]


def test_an_unknown_cluster_is_answered_with_a_similar_one() -> None:
    known = ["east-regional", "east-aggregate"]

    parse_definition(SMALL, clusters=known)
    assert "did you mean east-aggregate?" in text_of(
        changed("metadata/cluster", "east-agregate"), clusters=known
    )


def test_tls_takes_credentials_by_name_and_is_left_out_of_definitions_without_it() -> None:
    plain, secure = parse_definition(SMALL)[0], parse_definition(changed("spec/target/tls", {}))[0]
    assert (plain.spec.target.tls, "tls" in str(plain.to_wire())) == (None, False)
    assert secure.spec.target.tls is not None
    assert Workload.from_wire(secure.to_wire()) == secure

    named = changed("spec/target/tls", {"credentials": "biling", "server_name": "orders.example"})
    parse_definition(named)
    parse_definition(named, receivers=credentials(biling=()))
    parse_definition(named, receivers=credentials(biling=("payments", "billing")))
    assert "did you mean billing?" in text_of(named, receivers=credentials(billing=()))
    assert "receivers.credentials in each switchyard.yaml" in text_of(named, receivers=credentials())
    assert "add group billing" in text_of(named, receivers=credentials(biling=("payments",)))


def credentials(**known: Groups) -> ReceiverRules:
    return ReceiverRules(known)


def tokens(**known: Groups) -> ReceiverRules:
    return ReceiverRules(tokens=known)


def with_metadata(name: str, value: object, **target: object) -> Any:
    whole = {"address": "billing:443", "tls": {}, "metadata": {name: value}, **target}
    return changed("spec/target", whole)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kafka-topic", "a", "Switchyard sends it itself"),
        ("X-Zone", "a", "lower-case letters"),
        ("x" * 101, "a", "text of 1 to 100 letters"),
        (5, "a", "text of 1 to 100 letters"),
        ("grpc-timeout", "a", "a use of its own"),
        ("x-zone", "", "write text of 1 to"),
        ("x-zone", " ", "write text of 1 to"),
        ("x-zone", "a" * 1_001, "write text of 1 to"),
        ("x-zone", 5, "write text of 1 to"),
        ("x-zone", "ü", "not printable ASCII"),
        ("x-zone", "\ud800", "not printable ASCII"),
        ("x-zone", "a\nb", "not printable ASCII"),
        ("x-zone", "header:", "write header:x-zone"),
        ("x-zone", "secret:a b", "a secret is the last word"),
    ],
)
def test_metadata_that_calls_cannot_carry_is_refused_with_its_place(
    name: Any, value: object, words: str
) -> None:
    document = with_metadata(name, value)
    assert set(fields(document)) == {f"spec.target.metadata.{name}"}
    assert words in text_of(document)


def test_metadata_that_would_leave_no_room_for_a_message_is_refused() -> None:
    texts = {f"x-{number}": "a" * 1_000 for number in range(4)}
    parse_definition(with_metadata("x-zone", "header:zone", metadata=texts))
    document = with_metadata("", "", metadata={**texts, "authorization": "secret:billing"})
    assert fields(document) == ["spec.target.metadata"]
    assert "8,281 bytes with 32 for each and 4,096 for each token, where calls take 5,120" in text_of(
        document
    )
    pair = {"authorization": "secret:billing", "x-key": "secret:billing"}
    assert fields(with_metadata("", "", metadata=pair)) == ["spec.target.metadata"]


def test_metadata_obeys_the_workers_and_tokens_their_groups() -> None:
    document = with_metadata("authorization", "Bearer secret:billing")
    known = tokens(billing=("billing",))
    assert parse_definition(document, receivers=known)[1] == []
    assert parse_definition(document)[1] == []
    assert "receivers.tokens in each switchyard.yaml" in text_of(document, receivers=tokens())
    assert "did you mean billing?" in text_of(
        with_metadata("authorization", "secret:biling"), receivers=known
    )
    assert "add group billing" in text_of(document, receivers=tokens(billing=("payments",)))
    assert "add group billing" in text_of(document, receivers=tokens(billing=()))
    refused = known._replace(deny=("auth*",))
    assert "the workers allow no metadata of this name" in text_of(document, receivers=refused)
    only_x = known._replace(allow=("x-*",))
    assert fields(document, receivers=only_x) == ["spec.target.metadata.authorization"]


@pytest.mark.parametrize(
    ("name", "value", "target", "words"),
    [
        ("authorization", "secret:billing", {"tls": None}, "unencrypted"),
        ("authorization", "Bearer abc", {}, "put it into receivers.tokens"),
        ("x-zone", "header:zone", {"contract": "auto"}, "once the receiver takes streams"),
        ("authorization", "secret:billing", {"tls": None, "address": "unix:/receiver"}, ""),
        ("authorization", "header:token", {}, ""),
        ("x-zone", "a", {"contract": "auto"}, ""),
    ],
)
def test_metadata_that_may_not_be_meant_so_gets_a_warning(
    name: str, value: str, target: dict[str, object], words: str
) -> None:
    document = with_metadata(name, value, **target)
    if target.get("tls", "") is None:
        del document["spec"]["target"]["tls"]
    warnings = parse_definition(document)[1]
    assert [words in str(warning) for warning in warnings] == ([True] if words else [])


@pytest.mark.parametrize(
    ("field", "target"),
    [("metadata.x-zone", {"metadata": {"x-zone": "header:zone"}}), ("compat", {"compat": "uforwarder"})],
)
def test_streams_do_not_take_what_only_unary_calls_carry(field: str, target: dict[str, object]) -> None:
    parse_definition(with_metadata("x-env", "a", contract="unary", **target))
    document = with_metadata("x-env", "a", contract="stream", **target)
    assert fields(document) == [f"spec.target.{field}"]


def test_an_empty_tls_does_not_mean_none() -> None:
    document = changed("spec/target/tls", None)
    assert fields(document) == ["spec.target.tls"]
    assert "write tls: {}" in text_of(document)


@pytest.mark.parametrize(
    ("address", "transport", "is_refused"),
    [
        ("srv:///_grpc._tcp.billing.example", "http2", True), ("one:1,two:1", "http2", False),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", "http2", False), ("ipv4:10.0.0.1:1,10.0.0.2:1", "grpc", True),
        ("unix:/run/a.sock", "grpc", False), ("dns://10.0.0.53/a:1", "http2", False),
    ],
)  # fmt: skip
def test_tls_needs_a_name_for_the_certificate(address: str, transport: str, is_refused: bool) -> None:
    document = changed("spec/target", {"address": address, "transport": transport, "tls": {}})
    named = changed("spec/target/tls", {"server_name": "billing.example"}, base=document)
    parse_definition(named)
    if is_refused:
        assert fields(document) == ["spec.target.address"]
        assert "write target.tls.server_name" in text_of(document)
    else:
        parse_definition(document)


def test_tls_needs_a_name_for_the_certificates_of_isolated_receivers() -> None:
    targets = [{"environment": "staging", "address": "srv:///_grpc._tcp.staging.example"}]
    isolation = {"environment": "x-environment", "targets": targets}
    document = changed("spec/isolation", isolation, base=changed("spec/target/tls", {}))
    assert fields(document) == ["spec.isolation.targets.0.address"]


@pytest.mark.parametrize(
    ("tls", "field"),
    [
        ({"credentials": "/etc/shadow"}, "credentials"), ({"credentials": ""}, "credentials"),
        ({"server_name": "a b"}, "server_name"), ({"server_name": "user@host"}, "server_name"),
        ({"server_name": 7}, "server_name"), ({"ca": "a.pem"}, "ca"),
    ],
)  # fmt: skip
def test_tls_that_names_no_credentials_or_host_is_refused(tls: dict[str, Any], field: str) -> None:
    assert fields(changed("spec/target/tls", tls)) == [f"spec.target.tls.{field}"]


@pytest.mark.parametrize("document", [None, [], "Workload", 7, {}])
def test_a_document_that_is_no_definition_is_refused_like_an_invalid_one(document: Any) -> None:
    with pytest.raises(InvalidConfiguration):
        parse_definition(document)


def test_every_mistake_in_a_body_is_reported_without_a_file() -> None:
    document = changed("metadata/group", "a b")
    document["spec"]["target"]["address"] = "nowhere"
    document["spec"]["tracker"] = {"capacity": 0}

    assert fields(document) == ["metadata.group", "spec.target.address", "spec.tracker.capacity"]


# -- on the wire -----------------------------------------------------------------------------------

names = st.from_regex(r"[A-Za-z0-9_-]{1,60}", fullmatch=True)


def somewhere_to_stash(document: dict[str, Any]) -> dict[str, Any]:
    if "headOfLine" in document["spec"]:
        document["spec"]["retry"] = document["spec"].get("retry") or [{"delay": 1}]
        document["spec"].pop("dlq", None)
    return document


definitions = st.fixed_dictionaries({
    "apiVersion": st.just("switchyard/v1"),
    "kind": st.just("Workload"),
    "metadata": st.fixed_dictionaries(
        {"group": names, "topic": names, "cluster": names},
        optional={"owner": st.text("aé '\"#:-", max_size=20)},
    ),
    "spec": st.fixed_dictionaries(
        {"target": st.fixed_dictionaries(
            {"address": st.sampled_from(["b:1", "dns:///b:443", "unix:/b"])},
            optional={"timeout": st.integers(1, 3_600_000).map(lambda ms: f"{ms}ms"),
                      "method": st.just("/a.B/C")},
        )},
        optional={
            "flow": st.fixed_dictionaries({}, optional={
                "max_inflight": st.just("adaptive") | st.integers(1, 100_000),
                "messages_per_second": st.integers(1, 10**9) | st.floats(0.01, 1e9),
                "bytes_per_second": st.integers(1, 2**50),
            }),
            "tracker": st.fixed_dictionaries({"capacity": st.integers(1, 1_000_000)}),
            "retry": st.lists(st.fixed_dictionaries(
                {"delay": st.integers(0, 30 * 86_400_000).map(lambda ms: ms / 1000),
                 "attempts": st.integers(1, 1000)}
            ), max_size=10),
            "dlq": st.fixed_dictionaries(
                {"enabled": st.booleans()}, optional={"maxMerges": st.integers(0, 9)}
            ),
            "headOfLine": st.fixed_dictionaries(
                {"after": st.integers(1, 10**6), "stash": st.sampled_from(["dlq", "retry"])},
                optional={"perMinute": st.floats(0.1, 100)},
            ),
            "payload": st.fixed_dictionaries({"protobuf": st.fixed_dictionaries(
                {"descriptor": st.just("a.desc"), "message": st.just("a.B")},
                optional={"framing": st.sampled_from(["raw", "confluent"])},
            )}),
            "catchUp": st.fixed_dictionaries({"lag": st.integers(1, 10**12), "rate": st.floats(0.1, 1e6)}),
            "start": st.sampled_from(["earliest", "latest"]),
            "placement": st.fixed_dictionaries({"group": st.sampled_from(["default", "critical-1"])}),
            "hibernate": st.fixed_dictionaries({"after": st.integers(60, 30 * 86_400)}),
        },
    ),
}).map(somewhere_to_stash)  # fmt: skip


@given(definitions)
def test_a_definition_comes_back_from_the_wire_as_it_was(document: dict[str, Any]) -> None:
    workload, _ = parse_definition(document)

    back = Workload.from_wire(json.loads(json.dumps(workload.to_wire())))

    assert back.to_wire() == workload.to_wire()
    assert back.etag() == workload.etag()
    assert (back.key, back.retry_topics()) == (workload.key, workload.retry_topics())


@given(definitions)
def test_a_definition_from_the_wire_can_be_deployed_again(document: dict[str, Any]) -> None:
    workload, _ = parse_definition(document)

    assert parse_definition(workload.to_wire())[0].etag() == workload.etag()


def test_fields_of_a_newer_version_are_passed_over_on_the_wire_at_every_depth() -> None:
    workload, _ = parse_definition(FULL)
    newer = copy.deepcopy(workload.to_wire())
    newer["newer"] = newer["spec"]["newer"] = newer["spec"]["target"]["newer"] = {"x": [1]}
    newer["spec"]["retry"][1]["newer"] = newer["spec"]["payload"]["protobuf"]["newer"] = 1

    assert Workload.from_wire(newer) == workload


def test_the_etag_changes_with_the_meaning_and_not_with_the_writing() -> None:
    etag = parse_definition(SMALL)[0].etag()

    assert parse_definition(changed("spec/target/timeout", "10000ms"))[0].etag() == etag
    assert parse_definition(changed("spec/target/timeout", "11s"))[0].etag() != etag


# -- files -----------------------------------------------------------------------------------------


def test_a_folder_is_read_whole_yaml_and_json(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "a.yaml").write_text(
        f"{json.dumps(SMALL)}\n---\n{json.dumps(changed('metadata/topic', 'refunds'))}\n"
    )
    (tmp_path / "deeper" / "b.json").write_text(json.dumps(changed("metadata/topic", "invoices"), indent=1))
    (tmp_path / "notes.txt").write_text("no definition")

    workloads, warnings = load_definitions([tmp_path])

    assert sorted(w.key for w in workloads) == ["billing/invoices", "billing/orders", "billing/refunds"]
    assert warnings == []


def test_a_repeated_definition_is_reported_with_both_places(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(SMALL, indent=1))
    (tmp_path / "b.yaml").write_text("# a line\n" + json.dumps(SMALL, indent=1))

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([tmp_path])

    (problem,) = caught.value.problems
    assert (Path(problem.file).name, problem.line) == ("b.yaml", 7)
    assert "a.yaml:4" in problem.message


@pytest.mark.parametrize("broken", [0, 1])
def test_a_repeated_definition_is_reported_even_if_one_of_them_is_invalid(
    tmp_path: Path, broken: int
) -> None:
    documents = [SMALL, SMALL]
    documents[broken] = changed("spec/start", "middle")
    for name, document in zip("ab", documents, strict=True):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(document, indent=1))
    (tmp_path / "c.yaml").write_text("a: b: c\n")

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([tmp_path])

    found = {(Path(problem.file).name, problem.field) for problem in caught.value.problems}
    assert found == {("b.yaml", "metadata.topic"), (f"{'ab'[broken]}.yaml", "spec.start"), ("c.yaml", "")}
    assert "a.yaml:4" in str(caught.value)


def test_mistakes_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: b: c\n")
    (tmp_path / "b.yaml").write_text(json.dumps(changed("spec/start", "middle")))

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([tmp_path, tmp_path / "gone.yaml"])

    assert [Path(problem.file).name for problem in caught.value.problems] == ["a.yaml", "b.yaml", "gone.yaml"]


def test_a_folder_without_definitions_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"has no \.yaml"):
        load_definitions([tmp_path])


def test_warnings_name_their_file_and_line(tmp_path: Path) -> None:
    document = changed("spec/mode", "active-passive", base=changed("metadata/cluster", "east-regional"))
    (tmp_path / "a.yaml").write_text(json.dumps(document, indent=1))

    _, (warning,) = load_definitions([tmp_path / "a.yaml"], layout=REGIONS)

    assert (Path(warning.file).name, warning.field) == ("a.yaml", "metadata.cluster")
    assert '"cluster"' in (tmp_path / "a.yaml").read_text().splitlines()[warning.line - 1]
