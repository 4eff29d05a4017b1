"""`switchyard.yaml`: the settings that a process needs to start. Everything else is a definition, changed
while workers run.

The file refers to secrets (`env:NAME`, `file:PATH`) and does not contain them. A worker reads a secret
when it connects, and no representation, error or log shows it.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from app.config.fields import HeaderPattern, Label
from app.config.problems import (
    ConfigProblem,
    Document,
    InvalidConfiguration,
    read_documents,
    read_text,
    suggest,
    validate,
)
from app.config.quantities import Duration, Size
from app.config.receiver_rules import ReceiverRules
from app.config.web_address import Web
from app.failover.topology import Layout, Site
from app.kernel.json_types import JsonObject

DEFAULT_FILE = "switchyard.yaml"
_VARIABLES = {
    "region": "SWITCHYARD_REGION",
    "worker.zone": "SWITCHYARD_ZONE",
    "web.port": "SWITCHYARD_WEB_PORT",
}  # that override fields
SCHEMAS = "schemas"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

EXAMPLE = (
    "a minimal one: region: east / clusters: [{name: east-regional, region: east, tier: regional, "
    "bootstrap: localhost:9092}]"
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Secret:
    """A reference to a secret; `reveal` reads it."""

    __slots__ = ("reference",)

    def __init__(self, reference: str) -> None:
        self.reference = reference

    def reveal(self) -> str:
        """The secret itself.

        Raises:
            InvalidConfiguration: The variable or file does not exist.
        """
        kind, _, name = self.reference.partition(":")
        if kind == "env":
            if name in os.environ:
                return os.environ[name]
            raise InvalidConfiguration(
                [ConfigProblem(f"environment variable {name} is not set", f"set {name}")]
            )
        return read_text(Path(name), f"put the secret into {name}").rstrip("\n")

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"


def _secret(value: Any) -> Secret:
    if isinstance(value, Secret):
        return value
    if isinstance(value, str) and re.fullmatch(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)", value):
        return Secret(value)
    raise ValueError("a secret must be a reference; write env:NAME or file:/path/to/it")


def _bootstrap(value: Any) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not parts:
        raise ValueError("no broker address; write host:port, or a list of them")
    return tuple(parts)


def _host_port(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", text)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ValueError("not an address; write host:port with a port from 1 to 65535")
    return text


def _name(value: Any) -> Any:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError("not a name; use letters, digits, '.', '_' and '-', at most 100")
    return value


Name = Annotated[str, BeforeValidator(_name)]
SecretField = Annotated[Any, BeforeValidator(_secret)]
CREDENTIAL_FILES = "ca", "cert", "key"
FilePath = Annotated[str, Field(min_length=1, max_length=4096)]
GroupNames = Annotated[tuple[str, ...], Field(min_length=1)]


class Security(_Model):
    """How to authenticate to a cluster."""

    protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: SecretField | None = None
    password: SecretField | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class Cluster(_Model):
    """A Kafka cluster. `archive`: the folder that `python -m spark archive` keeps of it, for records that its
    logs do not have any more."""

    name: Name
    region: Name
    tier: Literal["regional", "aggregate", "other"]
    bootstrap: Annotated[tuple[Annotated[str, BeforeValidator(_host_port)], ...], BeforeValidator(_bootstrap)]
    security: Security = Security()
    archive: FilePath | None = None


class Logging(_Model):
    """How to log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Capacity(_Model):
    """The capacity of this worker: cores, bytes of memory, bytes a second. It measures those left out."""

    cpu: float | None = Field(default=None, gt=0, le=1024, allow_inf_nan=False)
    memory: Size | None = None
    network: Size | None = None


class Alerts(_Model):
    """Addresses to which alerts may be sent.

    `local` is about addresses of a worker's machine, its link, or a cloud's metadata service. With `warn`, a
    deployment shows them. With `refuse`, workers take no such alert, and send nothing there.
    """

    local: Literal["warn", "refuse"] = "warn"


class Worker(_Model):
    """This worker: its name (host and port when left out), its limits, the isolation group that it serves,
    and the zone where it runs (for `target.zones`). `stall`: it ends when its event loop stands still for so
    long; its jobs have moved by then."""

    name: Name | None = None
    grace_s: Duration = Field(default=30.0, alias="grace")
    stall_s: Duration = Field(default=60.0, alias="stall", ge=10.0)
    memory_budget: Size = 256 * 1024 * 1024
    group: Name | None = None
    zone: Label | None = None
    capacity: Capacity = Capacity()


class ReceiverCredentials(_Model):
    """The authorities that workers trust, and the certificate that they show, when they connect to receivers
    by TLS. Definitions refer to it by its name (`target.tls.credentials`).

    The paths are of files in PEM, relative to this file, which workers read again when they change. `ca`: the
    authorities to trust; the system's when left out. `cert` and `key`: the worker's certificate with those of
    intermediate authorities, and its key, which is not encrypted. `groups`: the consumer groups whose
    workloads may name it; all when left out.
    """

    name: Name
    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None
    groups: GroupNames = ()


class ReceiverToken(_Model):
    """A secret for calls' metadata, such as an access token. Definitions refer to it by its name
    (`target.metadata`), and can send it to any address. So it belongs to groups.

    `file`: has the token on one line, relative to this file; workers read it again when it changes. `groups`:
    the consumer groups whose workloads may name it.
    """

    name: Name
    file: FilePath
    groups: GroupNames


class MetadataNames(_Model):
    """The names that definitions may have in `target.metadata`: those that `allow` has (all when left out),
    except those that `deny` has. An entry is a name, or the beginning of names and a `*`."""

    allow: tuple[HeaderPattern, ...] | None = None
    deny: tuple[HeaderPattern, ...] = ()


class Receivers(_Model):
    """How workers reach receivers."""

    credentials: tuple[ReceiverCredentials, ...] = ()
    tokens: tuple[ReceiverToken, ...] = ()
    metadata: MetadataNames = MetadataNames()

    def below(self, folder: Path) -> Receivers:
        """With paths that are relative to the folder."""
        found = []
        for one in self.credentials:
            given = one.model_dump(include=set(CREDENTIAL_FILES), exclude_none=True)
            found.append(one.model_copy(update={name: str(folder / path) for name, path in given.items()}))
        tokens = [one.model_copy(update={"file": str(folder / one.file)}) for one in self.tokens]
        return self.model_copy(update={"credentials": tuple(found), "tokens": tuple(tokens)})


class Settings(_Model):
    """The whole file. `schemas`: the folder below which definitions may name files of schemas, relative to
    this file; `schemas` when left out."""

    region: Name
    clusters: tuple[Cluster, ...] = Field(min_length=1)
    control_cluster: Name | None = None
    web: Web = Web()
    logging: Logging = Logging()
    worker: Worker = Worker()
    receivers: Receivers = Receivers()
    alerts: Alerts = Alerts()
    # Earlier versions had limits of forecasts here. Both versions may read the same file while workers are
    # upgraded, so a worker ignores it with a warning (`app.main.build`).
    sizing: SkipJsonSchema[object] = None
    data_dir: str | None = None
    schemas: FilePath | None = None
    interceptors: tuple[str, ...] = ()

    @property
    def receiver_rules(self) -> ReceiverRules:
        """What definitions may use of `receivers`."""
        receivers, names = self.receivers, self.receivers.metadata
        credentials = {one.name: one.groups for one in receivers.credentials}
        tokens = {one.name: one.groups for one in receivers.tokens}
        return ReceiverRules(credentials, tokens, names.allow, names.deny)

    @property
    def control_cluster_name(self) -> str:
        """The cluster that holds the control topics: as configured, or the region's regional one."""
        return self.control_cluster or next(
            c.name for c in self.clusters if c.region == self.region and c.tier == "regional"
        )

    @property
    def data_path(self) -> Path:
        """Where workers keep their tables."""
        return Path(self.data_dir or platformdirs.user_data_dir("switchyard"))

    @property
    def schemas_path(self) -> Path:
        """The folder of schemas."""
        return Path(self.schemas or SCHEMAS)

    def layout(self) -> Layout:
        """Where all clusters are."""
        sites = {cluster.name: Site(cluster.region, cluster.tier) for cluster in self.clusters}
        return Layout(self.region, sites, self.control_cluster_name)

    def cluster_names(self) -> list[str]:
        """All clusters' names."""
        return [cluster.name for cluster in self.clusters]

    def cluster(self, name: str) -> Cluster:
        """The cluster of this name. Raises KeyError."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        raise KeyError(name)


def load_settings(path: str | Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Reads and checks the configuration of this process.

    `SWITCHYARD_CONFIG` names the file unless `path` does. `SWITCHYARD_REGION`, `SWITCHYARD_ZONE` and
    `SWITCHYARD_WEB_PORT` override it. Without a `data_dir` it is `data` in `SWITCHYARD_HOME`, if that is set.

    Raises:
        InvalidConfiguration: With everything that is wrong.
    """
    file = Path(path or env.get("SWITCHYARD_CONFIG") or DEFAULT_FILE)
    text = read_text(file, f"write one, or point SWITCHYARD_CONFIG at it; {EXAMPLE}")
    documents = read_documents(text, str(file))
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        message = "is empty" if not documents else "must be one YAML mapping"
        raise InvalidConfiguration([ConfigProblem(message, EXAMPLE, file=str(file), line=1, column=1)])
    document = documents[0]
    data = dict(document.data)
    if region := env.get("SWITCHYARD_REGION"):
        data["region"] = region
    if zone := env.get("SWITCHYARD_ZONE"):
        _override(data, "worker", "zone", zone)
    if port := env.get("SWITCHYARD_WEB_PORT"):
        _override(data, "web", "port", port)
    problems: list[ConfigProblem] = []
    try:
        settings: Settings = validate(Settings, document, data)
    except InvalidConfiguration as error:
        problems = list(error.problems)
    problems += _cross_checks(document, data)
    if problems:
        raise InvalidConfiguration([_named_by_environment(problem, env) for problem in problems])
    folder = file.absolute().parent
    update: JsonObject = {
        "schemas": str(folder / (settings.schemas or SCHEMAS)),
        "receivers": settings.receivers.below(folder),
    }
    if settings.web.port == 0:
        update["web"] = settings.web.model_copy(update={"port": _free_port()})
    if not settings.data_dir and (home := env.get("SWITCHYARD_HOME")):
        update["data_dir"] = str(Path(home) / "data")
    return settings.model_copy(update=update)


def _override(data: JsonObject, section: str, field: str, value: str) -> None:
    former = data.get(section, {})
    if isinstance(former, dict):  # else an error tells of the section
        data[section] = {**former, field: value}


def _free_port() -> int:
    """A free port; Faust does not accept 0."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def _named_by_environment(problem: ConfigProblem, env: Mapping[str, str]) -> ConfigProblem:
    """The problem at its true place: an environment variable, where that overrides the file."""
    variable = _VARIABLES.get(problem.field)
    if variable and env.get(variable):
        return replace(problem, file=f"environment variable {variable}", line=0, column=0)
    return problem


def _security(security: Any) -> Iterator[tuple[str, str, str]]:
    """Settings that do not give the security they seem to: missing parts, and parts that the protocol
    ignores."""
    protocol = security.get("protocol", "plaintext") if isinstance(security, dict) else None
    if not isinstance(protocol, str):
        return
    given = {name for name, value in security.items() if value is not None}
    if protocol.startswith("sasl_"):
        for name in sorted({"username", "password"} - given):
            yield name, f"missing, and {protocol} needs it", "add it"
    else:
        for name in sorted(given & {"username", "password", "mechanism"}):
            yield name, f"has no meaning with protocol {protocol}", "set protocol: sasl_ssl, or remove this"
    for name in sorted(given & {"ca", "cert", "key"}):
        if not protocol.endswith("ssl"):
            yield (
                name,
                f"has no meaning with protocol {protocol}",
                "set protocol: ssl or sasl_ssl, or remove this",
            )
        elif not os.access(str(security[name]), os.R_OK):
            yield name, "no such file, or it cannot be read", "check the path"


def _rows(receivers: object, field: str) -> list[object]:
    listed = receivers.get(field) if isinstance(receivers, dict) else None
    return listed if isinstance(listed, list) else []


def _repeated(rows: Iterable[object]) -> Iterator[tuple[int, str]]:
    """Rows with the name of a former one: (index, name)."""
    seen: set[str] = set()
    for index, row in enumerate(rows):
        name = row.get("name") if isinstance(row, dict) else None
        if isinstance(name, str):
            if name in seen:
                yield index, name
            seen.add(name)


def _credentials(rows: Iterable[object]) -> Iterator[tuple[int, str, str, str]]:
    """Credentials that would not be what they seem: (index, field, what is wrong, remedy)."""
    for index, one in enumerate(rows):
        if not isinstance(one, dict):
            continue
        given = {field for field in CREDENTIAL_FILES if one.get(field) is not None}
        for field, other in (("cert", "key"), ("key", "cert")):
            if field in given and other not in given:
                yield index, field, f"has no {other} beside it", f"add the {other}, or remove this"
        if not given:
            yield index, "ca", "missing, and there is no cert either", "add ca, or cert and key"


def _cross_checks(document: Document, data: JsonObject) -> list[ConfigProblem]:
    """Problems between fields. They are found in the raw data, so one report has all problems."""
    problems: list[ConfigProblem] = []

    def add(message: str, remedy: str, path: tuple[str | int, ...], value: Any) -> None:
        line, column = document.position(path)
        field = ".".join(map(str, path))
        shown = "" if value is None else repr(value)
        problems.append(ConfigProblem(message, remedy, field, shown, document.file, line, column))

    credentials, tokens = (_rows(data.get("receivers"), field) for field in ("credentials", "tokens"))
    for index, field, message, remedy in _credentials(credentials):
        add(message, remedy, ("receivers", "credentials", index, field), None)
    for field, what, rows in ("credentials", "credentials", credentials), ("tokens", "token", tokens):
        for index, name in _repeated(rows):
            remedy = "give each a name of its own"
            add(f"second {what} of this name", remedy, ("receivers", field, index, "name"), name)
    clusters = data.get("clusters")
    if not isinstance(clusters, list):
        return problems
    for index, name in _repeated(clusters):
        remedy = "give each cluster a name of its own"
        add("a second cluster of this name", remedy, ("clusters", index, "name"), name)
    for index, cluster in enumerate(clusters):
        for name, message, remedy in _security(
            cluster.get("security") if isinstance(cluster, dict) else None
        ):
            add(message, remedy, ("clusters", index, "security", name), None)
    dicts = [cluster for cluster in clusters if isinstance(cluster, dict)]
    region = data.get("region")
    regions = sorted({str(cluster["region"]) for cluster in dicts if "region" in cluster})
    if isinstance(region, str) and regions and region not in regions:
        add("no cluster is in this region", suggest(region, regions), ("region",), region)
    control = data.get("control_cluster")
    names = dict.fromkeys(cluster["name"] for cluster in dicts if isinstance(cluster.get("name"), str))
    if isinstance(control, str) and control not in names:
        add("no such cluster", suggest(control, list(names)), ("control_cluster",), control)
    elif control is None and isinstance(region, str) and region in regions and not any(
        cluster.get("region") == region and cluster.get("tier") == "regional" for cluster in dicts
    ):  # fmt: skip
        add(
            "the region has no regional cluster to hold the control topics",
            "add one, or name another in control_cluster", ("region",), region,
        )  # fmt: skip
    return problems
