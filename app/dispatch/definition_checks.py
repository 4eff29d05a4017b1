"""Checks across the fields of a workload's definition, and against the clusters and regions there are.

They read raw data, so that these problems are reported together with all others. They run when a definition
is deployed, not when it is read back: a workload that runs must continue after an upgrade.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from app.config.fields import Model, dns_server
from app.config.problems import ConfigProblem, Document, shown, suggest
from app.config.receiver_rules import METADATA_REMEDY, NO_RULES, Groups, ReceiverRules
from app.config.syntax_tree import Path_
from app.dispatch.definition import HEAD_TIMEOUTS, TIMEOUT_S, Breaker, HeadOfLine, Redelivery
from app.dispatch.model.circuit_breaker import DOWN_FAILURES
from app.dispatch.model.header_filter import HeaderFilter
from app.dispatch.model.metadata_sources import SECRET_NAMES, Source, read_source
from app.failover.topology import AGGREGATE, Layout
from app.grpc_client.target import Target
from app.kernel.durations import format_duration, parse_duration
from app.kernel.json_types import JsonMapping

SERVERS_ALLOW_S = 300.0  # a ping each, by gRPC's default
Part = TypeVar("Part", bound=Model)
REDELIVERY: Path_ = ("spec", "redelivery")
BREAKER: Path_ = ("spec", "breaker")


def problem_at(
    document: Document, path: Path_, message: str, remedy: str, severity: str = "error"
) -> ConfigProblem:
    """A problem with the value at `path`."""
    value = value_at(document.data, path)
    got = "" if value is None or isinstance(value, dict | list) else shown(repr(value))
    field = ".".join(map(str, path))
    return ConfigProblem(message, remedy, field, got, document.file, *document.position(path), severity)


def value_at(data: Any, path: Path_) -> Any:
    """The value at `path`; None: there is none."""
    for part in path:
        if isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            data = data.get(part) if isinstance(data, Mapping) else None
    return data


def checks(
    document: Document,
    clusters: Collection[str] | None,
    layout: Layout | None = None,
    receivers: ReceiverRules = NO_RULES,
) -> Iterator[ConfigProblem]:
    """All problems. The arguments are those of `app.config.definition_kind.KnownPlaces`."""
    cluster = value_at(document.data, ("metadata", "cluster"))
    if clusters is not None and isinstance(cluster, str) and cluster not in clusters:
        yield problem_at(
            document, ("metadata", "cluster"), "no such cluster", suggest(cluster, list(clusters))
        )
    yield from _addresses(document)
    yield from _tls(document, receivers)
    yield from _metadata(document, receivers)
    yield from _stash_topics(document)
    yield from _head_of_line(document)
    yield from _waits(document)
    yield from _keepalive(document)
    yield from _isolation(document)
    yield from _catch_up(document)
    yield from _regions(document, layout)


def _regions(document: Document, layout: Layout | None) -> Iterator[ConfigProblem]:
    """Checks the mode and primary region of a workload that runs in several regions."""
    mode, primary = value_at(document.data, ("spec", "mode")), value_at(document.data, ("spec", "primary"))
    field: Path_ = ("spec", "primary")
    if primary is not None and mode is None:
        message = "has no meaning without a mode"
        yield problem_at(
            document, field, message, "add mode: active-active or active-passive, or leave it out"
        )
    if layout is None or mode is None:
        return
    if isinstance(primary, str) and primary not in layout.names:
        yield problem_at(document, field, "no such region", suggest(primary, layout.names))
    cluster = value_at(document.data, ("metadata", "cluster"))
    site = layout.sites.get(cluster) if isinstance(cluster, str) else None
    if site is None:
        return  # reported above
    at: Path_ = ("metadata", "cluster")
    try:
        layout.local(str(cluster))
    except LookupError as error:
        message, _, remedy = str(error).rpartition("; ")
        yield problem_at(document, at, f"with a mode, each region reads its own cluster: {message}", remedy)
    else:
        if site.tier != AGGREGATE:
            yield problem_at(
                document, at, f"is of tier {site.tier}: there each region has different messages",
                "name an aggregate cluster, unless that is intended", "warning",
            )  # fmt: skip


def _addresses(document: Document) -> Iterator[ConfigProblem]:
    """Checks that what makes the calls can read the addresses: the library grpcio, or our own client."""
    path_of_zones: Path_ = ("spec", "target", "zones")
    zones = value_at(document.data, path_of_zones)
    if value_at(document.data, ("spec", "target", "transport")) != "grpc":
        names = zones if isinstance(zones, dict) else {}
        paths_of_zones: list[Path_] = [(*path_of_zones, zone) for zone in names]
        for path in [("spec", "target", "address"), *paths_of_zones] if paths_of_zones else ():
            address = value_at(document.data, path)
            if isinstance(address, str) and dns_server(address):
                remedy = "with zones, write host:port, or a list of these"
                yield problem_at(document, path, "names a DNS server, which only grpcio can ask", remedy)
        return
    if zones:
        remedy = "write transport: http2, or leave zones out"
        yield problem_at(document, path_of_zones, "need endpoints, which grpcio does not show", remedy)
    for path in _address_paths(document):
        if words := _not_for_grpcio(value_at(document.data, path)):
            remedy = "write transport: http2, or one host:port"
            yield problem_at(document, path, f"{words}, which grpcio cannot read", remedy)


def _tls(document: Document, receivers: ReceiverRules) -> Iterator[ConfigProblem]:
    """Checks that the receiver's certificates can be checked, and that there are the credentials."""
    target = value_at(document.data, ("spec", "target"))
    if not isinstance(target, dict) or "tls" not in target:
        return
    path: Path_ = ("spec", "target", "tls")
    tls = target["tls"]
    if tls is None:
        remedy = "write tls: {}, or leave it out"
        yield problem_at(document, path, "is empty, so connections would not be encrypted", remedy)
    if not isinstance(tls, dict):
        return
    if tls.get("server_name") is None:
        is_grpc = target.get("transport") == "grpc"
        for at in _address_paths(document):
            if words := _has_no_name(value_at(document.data, at), is_grpc=is_grpc):
                yield problem_at(document, at, words, "write target.tls.server_name")
    name = tls.get("credentials")
    if isinstance(name, str):
        yield from _may_use(document, (*path, "credentials"), name, receivers.credentials)


def _may_use(
    document: Document, path: Path_, name: str, known: Mapping[str, Groups] | None, *, is_token: bool = False
) -> Iterator[ConfigProblem]:
    """Checks that the workload may use these credentials, or this token."""
    group = value_at(document.data, ("metadata", "group"))
    what, them, others = ("token", "it", "another") if is_token else ("credentials", "them", "others")
    if known is None:
        return
    if name not in known:
        setting = "receivers.tokens" if is_token else "receivers.credentials"
        remedy = f"add {them} to {setting} in each switchyard.yaml, and restart the workers"
        remedy = suggest(name, list(known)) if known else remedy
        yield problem_at(document, path, f"the worker has no such {what}", remedy)
    elif group not in known[name] and (known[name] or is_token):
        remedy = f"add group {group} to {them} in each switchyard.yaml and restart the workers"
        yield problem_at(document, path, "not for this group", f"{remedy}, or name {others}")


def _metadata(document: Document, receivers: ReceiverRules) -> Iterator[ConfigProblem]:
    """Checks that calls may carry the metadata, and will."""
    target, path = value_at(document.data, ("spec", "target")), ("spec", "target", "metadata")
    if not isinstance(target, dict):
        return
    contract, named = target.get("contract"), target.get("metadata")
    if contract == "stream" and target.get("compat") is not None:
        remedy = "leave it out: messages of a stream have other metadata"
        yield problem_at(document, ("spec", "target", "compat"), "for unary calls only", remedy)
    names = HeaderFilter(receivers.allow, receivers.deny)
    for name, value in named.items() if isinstance(named, dict) else ():
        at = (*path, str(name))
        if not names.passes(str(name)):
            yield problem_at(document, at, "the workers allow no metadata of this name", METADATA_REMEDY)
        try:
            source = read_source(value) if isinstance(value, str) else Source()
        except ValueError:
            continue  # the field's type reports it
        if source.secret:
            yield from _may_use(document, at, source.secret, receivers.tokens, is_token=True)
        for words, remedy, severity in _doubts(target, str(name), source):
            yield problem_at(document, at, words, remedy, severity)


def _doubts(target: dict[str, object], name: str, source: Source) -> Iterator[tuple[str, str, str]]:
    """What people may not have meant by an entry of the metadata, and the remedy."""
    contract, address = target.get("contract"), str(target.get("address"))
    if source.header and contract == "stream":
        remedy = "leave it out: each message of a stream has its headers"
        yield "unary calls only take metadata from record headers", remedy, "error"
    elif source.header and contract == "auto":
        remedy = "write contract: unary, if something between needs it"
        yield "not sent once the receiver takes streams", remedy, "warning"
    if source.secret and target.get("tls") is None and not address.startswith("unix:"):
        remedy = "add target.tls, unless something between encrypts, such as a mesh's sidecar"
        yield "a token would be sent unencrypted", remedy, "warning"
    if source.text and not source.secret and name in SECRET_NAMES:
        remedy = (
            "if it is a secret, put it into receivers.tokens of each switchyard.yaml, and write secret:NAME"
        )
        yield "everybody who may see the workload sees it", remedy, "warning"


def _address_paths(document: Document) -> list[Path_]:
    """Where the addresses of the workload's receivers are."""
    zones = value_at(document.data, ("spec", "target", "zones"))
    targets = value_at(document.data, ("spec", "isolation", "targets"))
    return [
        ("spec", "target", "address"),
        *(("spec", "target", "zones", zone) for zone in (zones if isinstance(zones, dict) else ())),
        *(
            ("spec", "isolation", "targets", index, "address")
            for index in range(len(targets) if isinstance(targets, list) else 0)
        ),
    ]


def _target(address: object) -> Target | None:
    """The address as our own client reads it; None: it names a DNS server, or the field's type reports it."""
    try:
        return Target.parse(address) if isinstance(address, str) else None
    except ValueError:
        return None


def _has_no_name(address: object, *, is_grpc: bool) -> str:
    """Why it is not known which name the certificates have; empty: it is known, or grpcio cannot read it."""
    if (target := _target(address)) is None:
        return ""
    if target.service:
        return "" if is_grpc else "names SRV records, which are no name of a certificate"
    is_list_of_ips = len(target.places) > 1 and not target.name
    return "grpcio checks one name for a list of addresses" if is_grpc and is_list_of_ips else ""


def _not_for_grpcio(address: object) -> str:
    """Why only our own client reads the address; empty: grpcio may read it, too."""
    if (target := _target(address)) is None:
        return ""
    if target.service:
        return "names SRV records"
    is_list_of_ips = str(address).lower().startswith(("ipv4:", "ipv6:"))
    return "is a list that may have names" if len(target.places) > 1 and not is_list_of_ips else ""


def _stash_topics(document: Document) -> Iterator[ConfigProblem]:
    """Checks that messages are put away only into topics that the definition enables."""
    data = document.data
    stash: Path_ = ("spec", "headOfLine", "stash")
    to_retry = value_at(data, stash) == "retry"
    if to_retry and not value_at(data, ("spec", "retry")):
        yield problem_at(document, stash, "there is no retry tier", "add one to spec.retry, or write dlq")
    if value_at(data, ("spec", "dlq", "enabled")) is not False:
        return
    isolation: Path_ = ("spec", "isolation")
    has_environments = value_at(data, (*isolation, "environment")) is not None
    invalid: Path_ = ("spec", "payload", "protobuf", "invalid")
    for path, used, instead in (
        (stash, value_at(data, stash[:-1]) is not None and not to_retry, "retry"),
        ((*isolation, "unmatched"), has_environments and _to_dlq(data, isolation), "skip"),
        (invalid, value_at(data, invalid) == "dlq", "deliver"),
    ):
        if used:
            yield problem_at(
                document, path, "the DLQ it goes to is not enabled", f"enable spec.dlq, or write {instead}"
            )


def _to_dlq(data: Any, isolation: Path_) -> bool:
    return value_at(data, (*isolation, "unmatched")) in (None, "dlq")


def _head_of_line(document: Document) -> Iterator[ConfigProblem]:
    """Warns if a blocking message is given up while it may still succeed, or never by the rule it names."""
    field: Path_ = ("spec", "headOfLine", "after")
    head, redelivery = _part(document, field[:-1], HeadOfLine), _part(document, REDELIVERY, Redelivery)
    timeout_s = _seconds(value_at(document.data, ("spec", "target", "timeout")), TIMEOUT_S)
    if head is None or timeout_s is None:
        return
    if head.after is not None and head.after < HEAD_TIMEOUTS * timeout_s:
        yield problem_at(
            document, field, f"is less than twice target.timeout ({timeout_s:g} s): a handler may be given"
            " up, and its message dead-lettered, before its timeout has passed",
            f"leave it out, or write at least {HEAD_TIMEOUTS * timeout_s:g}s", "warning",
        )  # fmt: skip
    after_s = head.after_s(timeout_s)
    if "patience" in head.model_fields_set and head.patience >= after_s:
        yield problem_at(
            document, (*field[:-1], "patience"),
            f"is not shorter than headOfLine.after ({format_duration(after_s)}), so only that counts",
            "write a shorter one, or leave it out", "warning",
        )  # fmt: skip
    if redelivery is None or not redelivery.model_fields_set or not _moves_heads(document):
        return
    waits_s = round(redelivery.longest_s(), 3)
    if waits_s > after_s:
        first = next(iter(value_at(document.data, REDELIVERY)))
        yield problem_at(
            document, (*REDELIVERY, first), f"all attempts may take {format_duration(waits_s)},"
            f" but headOfLine.after gives up a message that blocks for {format_duration(after_s)}",
            "write fewer attempts or shorter waits, or put long waits into spec.retry", "warning",
        )  # fmt: skip


def _moves_heads(document: Document) -> bool:
    """Whether messages that block their partition are moved away."""
    data = document.data
    has_dlq = value_at(data, ("spec", "dlq", "enabled")) is not False
    has_place = has_dlq or bool(value_at(data, ("spec", "retry")))
    return has_place and value_at(data, ("spec", "ordering")) != "partition"


def _waits(document: Document) -> Iterator[ConfigProblem]:
    """Checks the waits between attempts and between probes, and how often a message may fail."""
    redelivery, breaker = _part(document, REDELIVERY, Redelivery), _part(document, BREAKER, Breaker)
    if redelivery is not None:
        first, longest = redelivery.initial_backoff, redelivery.max_backoff
        yield from _in_order(document, REDELIVERY, ("initialBackoff", first), ("maxBackoff", longest))
    if breaker is not None:
        first, longest = breaker.first_probe, breaker.longest_probe
        yield from _in_order(document, BREAKER, ("firstProbe", first), ("longestProbe", longest))
    if breaker is not None and breaker.failures < breaker.unavailable != DOWN_FAILURES:
        yield problem_at(
            document, (*BREAKER, "unavailable"),
            f"{breaker.failures} failures in a row (breaker.failures) open the breaker before it counts",
            "let it be at most breaker.failures", "warning",
        )  # fmt: skip
    if redelivery is not None and breaker is not None and breaker.failures <= redelivery.max_attempts:
        is_written = "failures" in breaker.model_fields_set
        field: Path_ = (*BREAKER, "failures") if is_written else (*REDELIVERY, "maxAttempts")
        yield problem_at(
            document, field, f"one message that fails each of its {redelivery.max_attempts} attempts may open"
            f" the breaker, which {breaker.failures} failures in a row do",
            "let breaker.failures be more than redelivery.maxAttempts", "warning",
        )  # fmt: skip


def _in_order(
    document: Document, path: Path_, first: tuple[str, float], longest: tuple[str, float]
) -> Iterator[ConfigProblem]:
    """Checks that the first wait is no longer than the longest; each has its name and its seconds."""
    (first_name, first_s), (longest_name, longest_s) = first, longest
    if first_s <= longest_s:
        return
    remedy = f"write {longest_name}: {format_duration(first_s)} or more, or a shorter {first_name}"
    if value_at(document.data, (*path, first_name)) is not None:
        words = f"is longer than {longest_name} ({format_duration(longest_s)})"
        yield problem_at(document, (*path, first_name), words, remedy)
    else:
        words = f"is shorter than {first_name} ({format_duration(first_s)})"
        yield problem_at(document, (*path, longest_name), words, remedy)


def _keepalive(document: Document) -> Iterator[ConfigProblem]:
    path: Path_ = ("spec", "target", "keepalive", "time")
    time_s = _seconds(value_at(document.data, path))
    if time_s is not None and time_s < SERVERS_ALLOW_S:
        yield problem_at(
            document, path, "servers may end connections with more than one ping in 5 minutes",
            "let the receiver allow it (in gRPC: permit_keepalive_time), or write 5m or more", "warning",
        )  # fmt: skip


def _part(document: Document, path: Path_, model: type[Part]) -> Part | None:
    """The part of the definition with its defaults; None: it is invalid, and the schema check reports it."""
    value = value_at(document.data, path)
    try:
        return model.model_validate({} if value is None else value)
    except ValidationError:
        return None


def _seconds(value: object, usual_s: float | None = None) -> float | None:
    """The duration in seconds, `usual_s` if there is none; None: the value is no duration."""
    try:
        return usual_s if value is None else parse_duration(value)
    except ValueError:
        return None


def _isolation(document: Document) -> Iterator[ConfigProblem]:
    """Checks for targets that no message can reach, and for targets that claim the same messages."""
    field: Path_ = ("spec", "isolation")
    isolation = value_at(document.data, field)
    if not isinstance(isolation, Mapping):
        return
    headers = {name for name in ("zone", "environment") if isolation.get(name) is not None}
    if not headers:
        yield problem_at(document, field, "names no header", "add zone: or environment: and a header's name")
    production = isolation.get("production", ["production", "prod"])
    targets = isolation.get("targets")
    seen: dict[tuple[str, str], int] = {}
    for index, target in enumerate(targets if isinstance(targets, list) else ()):
        if not isinstance(target, Mapping):
            continue  # the schema check reports it
        at: Path_ = (*field, "targets", index)
        criteria = [name for name in ("environment", "zone") if target.get(name) is not None]
        if not criteria:
            yield problem_at(
                document, at, "says neither environment nor zone", "add one, or both, as the header has it"
            )
        for name in criteria:
            if headers and name not in headers:
                yield problem_at(
                    document, (*at, name), f"no header names the {name}",
                    f"add {name}: and the header's name to spec.isolation",
                )  # fmt: skip
        environment = target.get("environment")
        if environment is not None and isinstance(production, list) and environment in production:
            yield problem_at(
                document, (*at, "environment"), "is production, which is the main target",
                "leave environment out, or take it out of spec.isolation.production",
            )  # fmt: skip
        main = value_at(document.data, ("spec", "target", "address"))
        if environment is not None and target.get("address") == main:
            yield problem_at(
                document, (*at, "address"), "is the main target's: production would get its messages",
                "name the receiver of this environment",
            )  # fmt: skip
        if problem := _fallback(document, at, target, targets if isinstance(targets, list) else []):
            yield problem
        pair = (str(environment), str(target.get("zone")))
        first = seen.setdefault(pair, index)
        if criteria and first != index:
            yield problem_at(
                document, at, f"has the same environment and zone as targets.{first}", "remove one of them"
            )


def _fallback(document: Document, at: Path_, target: JsonMapping, targets: list[Any]) -> ConfigProblem | None:
    """Checks that a fallback names another zone of the environment that has a target."""
    wanted, environment = target.get("fallback"), target.get("environment")
    if wanted is None:
        return None
    zones = [
        str(other["zone"])
        for other in targets
        if isinstance(other, Mapping)
        and other.get("environment") == environment
        and other.get("zone") is not None
    ]
    field = (*at, "fallback")
    if wanted == target.get("zone"):
        return problem_at(document, field, "is the target's own zone", "name another zone, or leave it out")
    if wanted not in zones:
        words = "production" if environment is None else f"environment {environment!r:.60}"
        return problem_at(
            document, field, f"is not a zone of {words} that has a target", suggest(str(wanted), zones)
        )
    return None


def _catch_up(document: Document) -> Iterator[ConfigProblem]:
    """Checks that the workload keeps no order: catching up delivers new messages before the backlog."""
    ordering = value_at(document.data, ("spec", "ordering"))
    if value_at(document.data, ("spec", "catchUp")) is not None and ordering in ("key", "partition"):
        remedy = "leave it out, or write ordering: none"
        yield problem_at(document, ("spec", "catchUp"), f"breaks the order by {ordering}", remedy)
