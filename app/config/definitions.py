"""Definitions: what runs, kept in the control log and changed live. Today: `Workload`.

The whole shape of a workload is accepted and checked; what is not in force yet is said so: as a warning
where ignoring it is harmless, as an error where a user would rely on it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, Strict, WithJsonSchema
from pydantic.json_schema import models_json_schema

from app.config.problems import (
    Document,
    InvalidConfiguration,
    Path_,
    Problem,
    read_documents,
    read_text,
    suggest,
    validate,
)
from app.config.units import Duration, Size, parse_duration

API_VERSION = "switchyard/v1"
LATER_KINDS = ("Route", "AuditPlan", "Alert", "Failover")
MAX_TOPIC_CHARS = 249  # Kafka's own limit
DAY_S = 86_400.0

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_ADDRESS = re.compile(
    r"(dns:(//[^/]*)?/)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):\d{1,5}"
    r"|ipv4:[0-9.]+:\d{1,5}(,[0-9.]+:\d{1,5})*"
    r"|ipv6:.+"
    r"|unix:(//)?/?[^\s]+"
)
_METHOD = re.compile(r"/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")

# Validated now, in force with a later release. Ignoring them costs comfort, not correctness.
NOT_YET: dict[Path_, str] = {
    ("spec", "flow", "messages_per_second"): "rate limits",
    ("spec", "flow", "bytes_per_second"): "rate limits",
    ("spec", "headOfLine"): "head-of-line blocking",
    ("spec", "isolation"): "context-aware routing",
    ("spec", "payload"): "Protobuf payloads",
    ("spec", "catchUp"): "catching up beside the latest",
    ("spec", "mode"): "several regions",
    ("spec", "primary"): "several regions",
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _name(value: Any) -> Any:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value in {".", ".."}:
        raise ValueError("not a name; use letters, digits, '.', '_' and '-', at most 200")
    return value


def _address(value: Any) -> Any:
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value) or not _possible(value):
        raise ValueError("not a gRPC address; write host:port, dns:///host:port or unix:/path")
    return value


def _possible(address: str) -> bool:
    """Whether the ports are ports and the IP addresses are IP addresses."""
    scheme, _, rest = address.partition(":")
    if scheme == "unix":
        return True
    for endpoint in rest.split(",") if scheme in {"ipv4", "ipv6"} else [address]:
        host, _, port = endpoint.rpartition(":")
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            return False
        try:
            if scheme in {"ipv4", "ipv6"} and ipaddress.ip_address(host.strip("[]")).version != int(
                scheme[3]
            ):
                return False
        except ValueError:
            return False
    return True


def _inflight(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value != "adaptive" and not (whole and 1 <= value <= 100_000):
        raise ValueError("not a number of messages; write adaptive or a number from 1 to 100000")
    return value


def _method(value: Any) -> Any:
    if not isinstance(value, str) or not _METHOD.fullmatch(value):
        raise ValueError("not a gRPC method; write /package.Service/Method")
    return value


Name = Annotated[str, BeforeValidator(_name)]
Rate = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
_INFLIGHT_SCHEMA = WithJsonSchema(
    {"anyOf": [{"const": "adaptive"}, {"type": "integer", "minimum": 1, "maximum": 100_000}]}
)
Delay = Annotated[Duration, Field(ge=0, le=30 * DAY_S)]


class Metadata(_Model):
    """Who and where: the identity of a workload is group and topic."""

    group: Name
    topic: Name
    cluster: Name
    owner: str = Field("", max_length=200)


class Target(_Model):
    """The receiver."""

    address: Annotated[str, BeforeValidator(_address)]
    contract: Literal["unary", "stream"] = "unary"
    method: Annotated[str, BeforeValidator(_method)] | None = None
    timeout: Annotated[Duration, Field(ge=0.001, le=3600)] = 10.0


class Flow(_Model):
    """How much at once."""

    max_inflight: Annotated[Literal["adaptive"] | int, PlainValidator(_inflight), _INFLIGHT_SCHEMA] = (
        "adaptive"
    )
    messages_per_second: Rate | None = None
    bytes_per_second: Size | None = None


class TrackerSpec(_Model):
    """How many messages may wait between the commit and the newest fetched, a partition."""

    capacity: Annotated[int, Strict()] = Field(default=10_000, ge=1, le=1_000_000)


class HeadOfLine(_Model):
    """When a message that blocks its partition is stashed."""

    after: Duration = 300.0
    stash: Literal["dlq", "retry"] = "dlq"


class RetryTier(_Model):
    """A retry topic: how long a message waits in it, and how often it is tried from it."""

    delay: Delay
    attempts: Annotated[int, Strict()] = Field(default=3, ge=1, le=1000)


class Dlq(_Model):
    """The dead letter queue."""

    enabled: bool = True


class Isolation(_Model):
    """Headers by which messages are routed apart."""

    zone: str | None = None
    environment: str | None = None


class Protobuf(_Model):
    """The payload's type."""

    descriptor: str
    message: str


class Payload(_Model):
    """What the payload is."""

    protobuf: Protobuf | None = None


class CatchUp(_Model):
    """When to jump to the latest, and how fast the backlog is worked off beside it."""

    lag: Annotated[int, Strict()] = Field(ge=1)
    rate: Rate


class Spec(_Model):
    """What is to happen with the messages."""

    mode: Literal["active-active", "active-passive"] | None = None
    primary: Name | None = None
    target: Target
    ordering: Literal["none", "key", "partition"] = "none"
    flow: Flow = Flow()
    tracker: TrackerSpec = TrackerSpec()
    head_of_line: HeadOfLine | None = Field(None, alias="headOfLine")
    retry: tuple[RetryTier, ...] = Field((), max_length=10)
    dlq: Dlq = Dlq()
    delay: Delay = 0.0
    isolation: Isolation | None = None
    payload: Payload | None = None
    catch_up: CatchUp | None = Field(None, alias="catchUp")
    start: Literal["earliest", "latest"] = "earliest"


class Workload(_Model):
    """A group's consumption of a topic, pushed to its receiver."""

    api_version: Literal["switchyard/v1"] = Field(alias="apiVersion")
    kind: Literal["Workload"]
    metadata: Metadata
    spec: Spec

    @property
    def key(self) -> str:
        """ "group/topic", the workload's name everywhere."""
        return f"{self.metadata.group}/{self.metadata.topic}"

    def retry_topics(self) -> tuple[str, ...]:
        """The topics of the retry tiers, in order."""
        stem = f"{self.metadata.topic}__{self.metadata.group}__retry_"
        return tuple(f"{stem}{number + 1}" for number in range(len(self.spec.retry)))

    def dlq_topic(self) -> str:
        """The dead letter queue's topic."""
        return f"{self.metadata.topic}__{self.metadata.group}__dlq"

    def method(self) -> str:
        """The gRPC method: its own, or that of uForwarder's consumers."""
        own = self.spec.target.method
        return own or f"/kafka.consumerproxy.{self.metadata.group}/{self.metadata.topic}"

    def to_wire(self) -> dict[str, Any]:
        """The canonical form, ready for JSON."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Workload:
        """The inverse; fields that only a newer version knows are passed over.

        Raises:
            pydantic.ValidationError: it is no workload.
        """
        return cls.model_validate(_known(cls, data))

    def etag(self) -> str:
        """Changes whenever the definition does."""
        packed = orjson.dumps(self.to_wire(), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(packed).hexdigest()[:16]


def _known(model: type[BaseModel], data: Any) -> Any:
    """`data` without fields that `model` does not have, at every depth."""
    if not isinstance(data, Mapping):
        return data
    kept = {}
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if alias not in data:
            continue
        value = data[alias]
        inner = _inner_model(field.annotation)
        if inner is not None and isinstance(value, list | tuple):
            value = [_known(inner, item) for item in value]
        elif inner is not None:
            value = _known(inner, value)
        kept[alias] = value
    return kept


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _inner_model(argument)) is not None:
            return found
    return None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of all kinds there are."""
    roots, schema = models_json_schema(
        [(Workload, "validation")], by_alias=True, title="Switchyard definitions"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "oneOf": list(roots.values()),
        **schema,
    }


def parse_definition(
    data: Any, *, clusters: Collection[str] | None = None, file: str = "", node: Any = None
) -> tuple[Workload, list[Problem]]:
    """A workload of plain data (a YAML document, a PUT's body), and the warnings about it.

    Raises:
        InvalidConfiguration: with everything that is wrong.
    """
    document = Document(file, data, node)
    if not isinstance(data, Mapping):
        raise InvalidConfiguration(
            [Problem("a definition must be a mapping", f"begin with apiVersion: {API_VERSION}", file=file)]
        )
    kind = data.get("kind")
    if kind in LATER_KINDS:
        raise InvalidConfiguration(
            [_at(document, ("kind",), "comes with a later release", "leave it out for now")]
        )
    problems: list[Problem] = []
    workload: Workload | None = None
    try:
        workload = validate(Workload, document)
    except InvalidConfiguration as error:
        problems += error.problems
    problems += _checks(document, data, clusters)
    if (
        workload is not None
        and len(max([*workload.retry_topics(), workload.dlq_topic()], key=len)) > MAX_TOPIC_CHARS
    ):
        problems.append(
            _at(
                document,
                ("metadata", "topic"),
                f"with the group's, the names of retry topics and DLQ exceed {MAX_TOPIC_CHARS} characters",
                "shorten the group's name",
            )
        )
    warnings = [problem for problem in problems if problem.severity == "warning"]
    if workload is None or len(warnings) < len(problems):
        raise InvalidConfiguration(problems)
    return workload, warnings


def _at(document: Document, path: Path_, message: str, remedy: str, severity: str = "error") -> Problem:
    value: Any = document.data
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    line, column = document.position(path) if document.node is not None else (0, 0)
    shown = "" if value is None or isinstance(value, dict | list) else repr(value)
    return Problem(message, remedy, ".".join(map(str, path)), shown, document.file, line, column, severity)


def _get(data: Any, path: Path_) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _delays(value: Any) -> bool:
    try:
        return parse_duration(value) > 0
    except ValueError:
        return False  # told, or not there


def _checks(
    document: Document, data: Mapping[str, Any], clusters: Collection[str] | None
) -> Iterable[Problem]:
    cluster = _get(data, ("metadata", "cluster"))
    if clusters is not None and isinstance(cluster, str) and cluster not in clusters:
        yield _at(document, ("metadata", "cluster"), "no such cluster", suggest(cluster, list(clusters)))
    if _get(data, ("spec", "target", "contract")) == "stream":
        yield _at(
            document,
            ("spec", "target", "contract"),
            "the stream contract comes with a later release",
            "use unary",
        )
    if _get(data, ("spec", "ordering")) in ("key", "partition"):
        yield _at(document, ("spec", "ordering"), "ordered delivery comes with a later release", "use none")
    if _delays(_get(data, ("spec", "delay"))):
        yield _at(
            document, ("spec", "delay"), "delay on the main topic comes with a later release", "leave it out"
        )
    for path, feature in NOT_YET.items():
        if _get(data, path) is not None:
            yield _at(
                document,
                path,
                f"not in force yet ({feature} comes with a later release)",
                "it is kept and ignored",
                "warning",
            )


def load_definitions(
    sources: Sequence[str | Path], *, clusters: Collection[str] | None = None
) -> tuple[list[Workload], list[Problem]]:
    """The definitions of files and folders (*.yaml, *.yml, *.json), and the warnings about them.

    Raises:
        InvalidConfiguration: with everything that is wrong in all of them.
    """
    problems: list[Problem] = []
    documents: list[Document] = []
    seen: set[Path] = set()
    for source in sources:
        path = Path(source)
        files = (
            sorted(f for f in path.rglob("*") if f.suffix in {".yaml", ".yml", ".json"})
            if path.is_dir()
            else [path]
        )
        if not files:
            problems.append(
                Problem("has no .yaml, .yml or .json file", "name another folder", file=str(path))
            )
        for file in files:
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                documents += read_documents(read_text(file, "check the path"), str(file))
            except InvalidConfiguration as error:
                problems += error.problems
    workloads: dict[str, tuple[Workload, Document]] = {}
    for document in documents:
        try:
            workload, warnings = parse_definition(
                document.data, clusters=clusters, file=document.file, node=document.node
            )
        except InvalidConfiguration as error:
            problems += error.problems
            continue
        problems += warnings
        if workload.key in workloads:
            first = workloads[workload.key][1]
            line, _ = first.position(("metadata",), key=True)
            problems.append(
                _at(
                    document,
                    ("metadata", "topic"),
                    f"{workload.key} is defined twice, first at {first.file}:{line}",
                    "remove one",
                )
            )
        else:
            workloads[workload.key] = (workload, document)
    if any(problem.severity == "error" for problem in problems):
        raise InvalidConfiguration(problems)
    return [workload for workload, _ in workloads.values()], problems
