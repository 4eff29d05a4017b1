"""`switchyard.yaml` has safe defaults; all problems are reported at once, and no secret is shown."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from app.config.problems import InvalidConfiguration
from app.config.receiver_rules import ReceiverRules
from app.config.settings import Secret, Settings, load_settings
from tests.config.examples import SETTINGS

SASL = """\
region: east
clusters:
  - name: r
    region: east
    tier: regional
    bootstrap: localhost:9092
    security: {protocol: sasl_ssl, username: 'env:SY_USER', password: 'env:SY_PASSWORD'}
"""
MINIMAL = """\
region: east
clusters: [{name: r, region: east, tier: regional, bootstrap: "localhost:9092"}]
"""


def load(tmp_path: Path, text: str, **env: str) -> Settings:
    file = tmp_path / "switchyard.yaml"
    file.write_text(text)
    return load_settings(file, env)


def problems(tmp_path: Path, text: str, **env: str) -> list[tuple[str, int]]:
    with pytest.raises(InvalidConfiguration) as caught:
        load(tmp_path, text, **env)
    return [
        (problem.field.replace("bootstrap.0", "bootstrap"), problem.line) for problem in caught.value.problems
    ]


def text_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        load(tmp_path, text)
    return str(caught.value)


def test_by_default_the_api_listens_on_loopback_only(tmp_path: Path) -> None:
    settings = load(tmp_path, SETTINGS)

    assert (settings.web.host, settings.web.port) == ("127.0.0.1", 6066)
    assert (settings.logging.level, settings.logging.format) == ("info", "console")
    assert (settings.worker.grace_s, settings.worker.memory_budget) == (30.0, 256 * 2**20)


def test_the_control_cluster_is_the_regions_regional_one_unless_named(tmp_path: Path) -> None:
    assert load(tmp_path, SETTINGS).control_cluster_name == "east-regional"
    named = load(tmp_path, SETTINGS + "control_cluster: east-aggregate\n")
    assert named.control_cluster_name == "east-aggregate"


def test_the_environment_overrides_region_and_port_and_names_the_file(tmp_path: Path) -> None:
    west = SETTINGS.replace("region: east\nclusters", "region: nowhere\nclusters").replace(
        "tier: aggregate", "tier: other"
    )
    (tmp_path / "other.yaml").write_text(west)
    env = {
        "SWITCHYARD_CONFIG": str(tmp_path / "other.yaml"),
        "SWITCHYARD_REGION": "east",
        "SWITCHYARD_WEB_PORT": "7001",
        "SWITCHYARD_ZONE": "eu-1a",
    }  # fmt: skip

    settings = load_settings(None, env)

    assert (settings.region, settings.web.port, settings.worker.zone) == ("east", 7001, "eu-1a")


def test_the_zone_of_the_environment_keeps_the_rest_of_the_worker(tmp_path: Path) -> None:
    settings = load(tmp_path, SETTINGS + "worker: {zone: eu-1b, grace: 3s}\n", SWITCHYARD_ZONE="eu-1a")

    assert (settings.worker.zone, settings.worker.grace_s) == ("eu-1a", 3.0)


def test_a_zone_of_the_environment_that_is_none_is_refused_with_the_variable(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="environment variable SWITCHYARD_ZONE"):
        load(tmp_path, SETTINGS, SWITCHYARD_ZONE="x" * 300)


def test_the_port_of_the_environment_keeps_the_files_host(tmp_path: Path) -> None:
    settings = load(tmp_path, SETTINGS + "web: {host: '::1', port: 1}\n", SWITCHYARD_WEB_PORT="7001")

    assert (settings.web.host, settings.web.port) == ("::1", 7001)


@pytest.mark.parametrize(
    ("written", "read"),
    [("a:1", ("a:1",)), ("'a:1, b:2'", ("a:1", "b:2")),
     ("['[::1]:9092', 'h_x.y-z:65535']", ("[::1]:9092", "h_x.y-z:65535"))],
)  # fmt: skip
def test_brokers_are_one_text_or_a_list(tmp_path: Path, written: str, read: tuple[str, ...]) -> None:
    settings = load(tmp_path, SETTINGS.replace("localhost:9093", written))

    assert settings.cluster("east-aggregate").bootstrap == read


@pytest.mark.parametrize(
    "written", ["localhost", "localhost:0", "localhost:65536", "'::1:9092'", "http://h:1", "[]", "''", "7"]
)
def test_a_bad_address_is_reported_with_its_line(tmp_path: Path, written: str) -> None:
    found = problems(tmp_path, SETTINGS.replace("localhost:9093", written))

    assert [line for field, line in found if field.startswith("clusters.1.bootstrap")] == [10]


def test_settings_do_not_change_after_they_are_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(tmp_path, SETTINGS).region = "west"  # type: ignore[misc]  # the test's purpose


def test_all_problems_are_reported_at_once_each_at_its_line(tmp_path: Path) -> None:
    text = """\
region: eats
clusters:
  - name: east-regional
    region: east
    tier: regionl
    bootstrap: localhost:99999
  - name: east-regional
    region: east
    tier: aggregate
    bootstrp: localhost:1
control_cluster: east-regionl
web:
  port: abc
loging: {level: info}
logging: {format: xml}
worker: {grace: soon}
"""
    assert problems(tmp_path, text) == [
        ("region", 1),
        ("clusters.0.tier", 5),
        ("clusters.0.bootstrap", 6),
        ("clusters.1.bootstrap", 7),
        ("clusters.1.name", 7),
        ("clusters.1.bootstrp", 10),
        ("control_cluster", 11),
        ("web.port", 13),
        ("loging", 14),
        ("logging.format", 15),
        ("worker.grace", 16),
    ]


@pytest.mark.parametrize(
    ("before", "after", "suggestion"),
    [
        ("tier: aggregate", "tier: agregate", "aggregate"),
        ("tier: aggregate", "teir: aggregate", "tier"),
        ("region: east\nclusters", "region: eats\nclusters", "east"),
        ("clusters:", "control_cluster: east-regionl\nclusters:", "east-regional"),
        ("clusters:", "clustres: []\nclusters:", "clusters"),
    ],
)
def test_a_typing_error_is_answered_with_a_suggestion(
    tmp_path: Path, before: str, after: str, suggestion: str
) -> None:
    assert f"did you mean {suggestion}?" in text_of(tmp_path, SETTINGS.replace(before, after, 1))


def test_a_region_without_a_place_for_the_control_topics_is_refused(tmp_path: Path) -> None:
    assert "name another in control_cluster" in text_of(
        tmp_path, SETTINGS.replace("tier: regional", "tier: other")
    )


def test_a_literal_secret_is_refused_with_the_right_form_and_never_shown(tmp_path: Path) -> None:
    text = text_of(tmp_path, SASL.replace("env:SY_PASSWORD", "hunter2"))

    assert "clusters.0.security.password" in text
    assert "env:NAME or file:/path" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "written", ["[hunter2]", "{is: hunter2}", "'ENV:hunter2'", "'env:hunter2!'", "'env:'"]
)
def test_any_value_of_a_secrets_field_is_hidden(tmp_path: Path, written: str) -> None:
    assert "hunter2" not in text_of(tmp_path, SASL.replace("'env:SY_PASSWORD'", written))


def test_a_secret_under_an_unknown_name_is_not_shown(tmp_path: Path) -> None:
    assert "hunter2" not in text_of(tmp_path, SASL.replace("password: 'env:SY_PASSWORD'", "pasword: hunter2"))


def test_secrets_are_read_only_when_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SY_PASSWORD", raising=False)
    settings = load(tmp_path, SASL)
    password = settings.clusters[0].security.password
    assert password is not None

    with pytest.raises(InvalidConfiguration, match="SY_PASSWORD is not set"):
        password.reveal()
    monkeypatch.setenv("SY_PASSWORD", "hunter2")
    assert password.reveal() == "hunter2"
    assert "hunter2" not in f"{settings!r} {settings} {password!r} {password}"


def test_a_secret_in_a_file_is_read_without_its_last_newline(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")

    assert Secret(f"file:{tmp_path / 'secret'}").reveal() == "hunter2"
    with pytest.raises(InvalidConfiguration, match="does not exist"):
        Secret(f"file:{tmp_path / 'none'}").reveal()


def test_the_data_folder_is_the_users_unless_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHYARD_HOME", "/of/another/process")  # only the given environment counts
    home = str(tmp_path / "home")

    assert load(tmp_path, SETTINGS, SWITCHYARD_HOME=home).data_path == tmp_path / "home" / "data"
    configured = load(tmp_path, SETTINGS + "data_dir: /srv/switchyard\n", SWITCHYARD_HOME=home)
    assert configured.data_path == Path("/srv/switchyard")
    assert load(tmp_path, SETTINGS).data_path == Path(platformdirs.user_data_dir("switchyard"))


@pytest.mark.parametrize("written", ["[hunter2]", "[{password: hunter2}]", "hunter2", "7", "null"])
def test_security_that_is_no_mapping_is_refused_with_its_possible_fields(
    tmp_path: Path, written: str
) -> None:
    text = text_of(tmp_path, SETTINGS.replace("localhost:9093", f"localhost:9093\n    security: {written}"))

    assert "s.yaml:11:15: error: clusters.1.security: must be a mapping" in text.replace("witchyard", "")
    assert "known here: ca, cert, key, mechanism, password, protocol, username" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("region: east\nclusters:", "region: east\nclusters: 7\nold:", "clusters: must be a list (got 7)"),
        ("clusters:", "web: {port: http}\nclusters:", "web.port: must be a whole number (got 'http')"),
        ("clusters:", "web: {port: 70000}\nclusters:", "web.port: must be at most 65535 (got 70000)"),
        ("clusters:", "web: {host: 7}\nclusters:", "web.host: must be text (got 7)"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported_in_plain_words_with_a_remedy(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    text = text_of(tmp_path, SETTINGS.replace(before, after, 1))

    assert f"error: {message}\n    -> " in text


def test_the_policy_for_alert_addresses_is_warn_or_refuse(tmp_path: Path) -> None:
    assert load(tmp_path, SETTINGS).alerts.local == "warn"
    assert load(tmp_path, SETTINGS + "alerts: {local: refuse}\n").alerts.local == "refuse"
    assert problems(tmp_path, SETTINGS + "alerts: {local: allow}\n")[0][0] == "alerts.local"


def test_sizing_of_an_earlier_version_does_not_stop_a_workers_start(tmp_path: Path) -> None:
    assert load(tmp_path, SETTINGS).sizing is None
    for earlier in ("{forecasts: false, look_ahead: 30m, max_age: 2d, max_error: 0.4}", "{}", "[odd]"):
        assert load(tmp_path, SETTINGS + f"sizing: {earlier}\n").sizing is not None


def test_schemas_are_in_a_folder_beside_the_file_unless_configured(tmp_path: Path) -> None:
    by_default = MINIMAL
    assert load(tmp_path, by_default).schemas_path == tmp_path / "schemas"
    assert load(tmp_path, by_default + "schemas: types\n").schemas_path == tmp_path / "types"
    assert load(tmp_path, by_default + "schemas: /etc/types\n").schemas_path == Path("/etc/types")


def test_a_worker_that_would_end_at_each_pause_of_its_loop_is_refused(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).worker.stall_s == 60.0
    assert load(tmp_path, MINIMAL + "worker: {stall: 5m}\n").worker.stall_s == 300.0
    with pytest.raises(InvalidConfiguration, match=r"worker\.stall"):
        load(tmp_path, MINIMAL + "worker: {stall: 1s}\n")


CREDENTIALS = """\
receivers:
  credentials:
    - {name: billing, ca: ca.pem, cert: tls.crt, key: /secrets/tls.key, groups: [billing]}
    - {name: public, ca: public.pem}
"""


def test_credentials_for_receivers_are_named_and_their_files_may_come_later(tmp_path: Path) -> None:
    settings = load(tmp_path, MINIMAL + CREDENTIALS)
    billing, public = settings.receivers.credentials
    assert (billing.ca, billing.key) == (str(tmp_path / "ca.pem"), "/secrets/tls.key")
    assert (public.cert, public.key) == (None, None)
    rules = settings.receiver_rules
    assert rules.credentials == {"billing": ("billing",), "public": ()}
    assert load(tmp_path, MINIMAL).receiver_rules == ReceiverRules({}, {})


def test_tokens_and_rules_for_metadata(tmp_path: Path) -> None:
    lines = """\
receivers:
  tokens:
    - {name: billing, file: token, groups: [billing]}
    - {name: public, file: /token, groups: [billing, orders]}
  metadata: {allow: [x-*], deny: [x-a]}
"""
    settings = load(tmp_path, MINIMAL + lines)
    assert [one.file for one in settings.receivers.tokens] == [str(tmp_path / "token"), "/token"]
    tokens = {"billing": ("billing",), "public": ("billing", "orders")}
    assert settings.receiver_rules == ReceiverRules({}, tokens, ("x-*",), ("x-a",))


@pytest.mark.parametrize(
    ("receivers", "field", "words"),
    [
        ("{metadata: {deny: ['*a']}}", "metadata.deny", "receivers"),
        ("{tokens: [{name: a, file: b}]}", "tokens.0.groups", "missing"),
        ("{tokens: [{name: a, file: b, groups: []}]}", "tokens.0.groups", "at least 1"),
        ("{tokens: [{name: a, groups: [b]}]}", "tokens.0.file", "missing"),
        ("{tokens: [a, {name: b, file: b, groups: [b]}]}", "tokens.0", "mapping"),
        ("{tokens: a}", "tokens", "list"),
        (
            "{tokens: [{name: a, file: b, groups: [b]}, {name: a, file: c, groups: [b]}]}",
            "tokens.1.name",
            "give each a name of its own",
        ),
    ],
)
def test_wrong_tokens_and_names_of_metadata_are_told_by_their_place(
    receivers: str, field: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfiguration) as wrong:
        load(tmp_path, MINIMAL + f"receivers: {receivers}\n")
    assert f"receivers.{field}" in str(wrong.value)
    assert words in str(wrong.value)


@pytest.mark.parametrize(
    ("entry", "field", "words"),
    [
        ("{name: billing, ca: a.pem}", "1.name", "a name of its own"),
        ("{name: other, cert: a.pem}", "1.cert", "add the key"),
        ("{name: other, key: a.pem}", "1.key", "add the cert"),
        ("{name: other}", "1.ca", "add ca, or cert and key"),
        ("{name: 'a b', ca: a.pem}", "1.name", "not a name"),
        ("{name: other, ca: ''}", "1.ca", "must not be empty"),
        ("{name: other, ca: a.pem, groups: []}", "1.groups", "at least 1"),
        ("{name: other, cacert: a.pem}", "1.cacert", "did you mean"),
    ],
)
def test_credentials_that_are_not_what_they_seem_are_refused_with_the_remedy(
    entry: str, field: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(tmp_path, f"{MINIMAL}receivers:\n  credentials: [{{name: billing, ca: b.pem}}, {entry}]\n")
    found = {problem.field: str(problem) for problem in caught.value.problems}
    assert words in found[f"receivers.credentials.{field}"], found
