"""REST, metrics and the command line tell the same figures of a workload that stands still."""

from __future__ import annotations

from typing import Any

import msgspec
from click.testing import CliRunner

from app.cli.main import switchyard
from app.dispatch.view import WorkloadFlow
from tests.web.client import Console
from tests.web.runtime_fake import assigned, beat, definition, flowing, in_trouble, job, put

PATH = "/api/v1/workloads/billing/orders"


def in_trouble_at(console: Console, text: str = "") -> None:
    fed = console.fed
    fed.apply(put(definition(headOfLine={"after": "90s"})), assigned(job(0)), assigned(job(1)))
    paused = flowing(job(1), state="paused", used=10_000, backoff=2)
    fed.observe(beat(flowing(job(0), used=20, ready=7), paused, **in_trouble(text)))


def describe(console: Console, *options: str) -> str:
    result = CliRunner().invoke(
        switchyard, ["workload", "describe", "billing/orders", *options], env={"SWITCHYARD_URL": console.url}
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_the_answer_for_a_workload_has_every_figure_with_its_unit(console: Console) -> None:
    in_trouble_at(console)
    body = console.ask("GET", PATH).json
    flow = body["flow"]
    assert (flow["bound"], flow["worker"]) == ("breaker", "worker-a")
    assert (body["status"]["bound"], body["status"]["why"]) == (flow["bound"], flow["why"])
    main, away = flow["receivers"]
    assert (main["ceiling"], main["credit"], main["probe_in_s"], main["failed_share"]) == (None,) * 4
    assert (main["base_timeout_s"], main["allowed"]) == (10.0, 100)
    assert (away["timeout_s"], away["base_timeout_s"], away["failed_share"]) == (20.0, 10.0, 0.75)
    assert [(one["state"], one["share"], one["failed_share"]) for one in main["endpoints"]] == [
        ("ready", 0.75, 0.04),
        ("ejected", 0.25, 1.0),
    ]
    assert (main["more_endpoints"], [one["latency_ms"] for one in away["endpoints"]]) == (2, [None])
    (worker,) = flow["workers"]
    assert (worker["jobs"], worker["paused"], worker["ready"]) == (2, 1, 7)
    assert (worker["messages_per_s"], worker["messages_short"]) == (50.0, 5.0)
    head = flow["head_of_line"]
    assert (head["after_s"], head["use_threshold"], head["unfinished_threshold"]) == (90.0, 0.9, 0.02)
    assert [c["offset"] for c in head["candidates"]] == [17]
    assert [d["age_s"] for d in head["decisions"]] == [300.0]
    assert [p["tracker_used"] for p in body["partitions"]] == [20, 10_000]


def test_openapi_describes_the_shape_of_the_answer(console: Console) -> None:
    in_trouble_at(console)
    described = console.ask("GET", "/api/v1/openapi.json").json
    answer = described["paths"]["/api/v1/workloads/{group}/{topic}"]["get"]["responses"]["200"]
    schemas = described["components"]["schemas"]
    assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/WorkloadDetail"}
    shape = schemas["WorkloadDetail"]
    body = console.ask("GET", PATH).json
    assert set(shape["required"]) == set(body)
    assert shape["properties"]["flow"] == {"$ref": "#/components/schemas/WorkloadFlow"}
    assert set(schemas["WorkloadFlow"]["required"]) == set(body["flow"])
    assert set(schemas["Receiver"]["required"]) == set(body["flow"]["receivers"][0])
    assert schemas["WorkerFlow"]["properties"]["why"] == {"type": "string"}
    msgspec.convert(body["flow"], WorkloadFlow)  # raises when a type is another than described


def test_partitions_without_a_worker_are_the_reason_why_a_workload_stands_still(console: Console) -> None:
    console.fed.apply(put(definition()), assigned(job(0), "gone"))
    flow = console.ask("GET", PATH).json["flow"]
    assert (flow["bound"], flow["worker"]) == ("worker", None)
    assert "1 of 1 partitions wait for a worker" in flow["why"]


def metrics(console: Console) -> dict[str, float]:
    lines = console.metrics().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_metrics_have_the_same_figures_by_job_target_and_workload(console: Console) -> None:
    in_trouble_at(console)
    figures = metrics(console)
    labels = 'workload="billing/orders"'
    away, main = f'{{target="billing-test:443",{labels}}}', f'{{target="billing:443",{labels}}}'
    one = f'{{partition="1",topic="orders",{labels}}}'

    def value(name: str, where: str = f"{{{labels}}}") -> float | None:
        return figures.get(f"switchyard_{name}{_sorted(where)}")

    figures = {f"{name.split('{')[0]}{_sorted(name[name.find('{'):])}" if "{" in name else name: v
            for name, v in figures.items()}  # fmt: skip
    assert value("receiver_limit_messages", away) == 8
    assert value("receiver_allowed_messages", away) == 4
    assert value("receiver_in_flight_messages", main) == 3
    assert value("receiver_held_messages", away) == 12
    assert value("receiver_timeout_seconds", away) == 20
    assert value("receiver_failed_ratio", away) == 0.75
    assert value("receiver_serving", main) == 1
    assert value("receiver_serving", away) is None  # unreachable says nothing of serving
    assert value("receiver_credit_messages", main) is None
    assert value("receiver_breaker_state", f'{{state="open",{away[1:]}') == 1
    assert value("receiver_breaker_state", f'{{state="closed",{away[1:]}') == 0
    ejected = f'{{endpoint="10.0.0.2:443",{main[1:]}'
    ready = f'{{endpoint="10.0.0.1:443",{main[1:]}'
    assert value("endpoint_in_flight_messages", ready) == 3
    assert value("endpoint_limit_messages", ready) == 50
    assert value("endpoint_latency_seconds", ready) == 0.0045
    assert value("endpoint_latency_seconds", ejected) is None  # it had no answer yet
    assert value("endpoint_state_seconds", ejected) == 7
    assert value("endpoint_share_ratio", ejected) == 0.25
    assert value("endpoint_failed_ratio", ejected) == 1
    assert value("endpoint_state", f'{{state="ejected",{ejected[1:]}') == 1
    assert value("endpoint_state", f'{{state="ready",{ejected[1:]}') == 0
    assert value("breaker_open") == 1
    assert value("head_of_line_stashed_messages_total") == 2
    assert value("head_candidates") == 4
    assert value("rate_limit_messages_per_second") == 50
    assert value("bound", f'{{by="breaker",{labels}}}') == 1
    assert value("paused", one) == 1
    assert value("tracker_used_messages", one) == 10_000
    assert value("backoff_messages", one) == 2


def _sorted(labels: str) -> str:
    return "{" + ",".join(sorted(labels.strip("{}").split(","))) + "}"


def test_describe_prints_why_first_and_then_the_numbers(console: Console) -> None:
    in_trouble_at(console)
    lines = describe(console).splitlines()
    assert lines[0].startswith(
        "billing/orders: breaker: the breaker of billing-test:443 is open: found nobody"
    )
    text = "\n".join(lines)
    for words in (
        "8/500 (hold), slow start 4", "20 s (defined 10 s)", "75.0% of 40", "50 messages/s, 5 short",
        "10.0.0.1:443 (same zone)", "ejected for 7 s (it failed )", "and 2 more of billing:443",
        "2 (1 paused)", "90% in use", "no token", "and 3 more", "Moved away: 2", "Partitions",
    ):  # fmt: skip
        assert words in text


def test_describe_lets_nothing_through_that_drives_a_terminal(console: Console) -> None:
    in_trouble_at(console, "\x1b[2J\nfaked")
    text = describe(console)
    assert "\x1b" not in text
    assert not any(line.startswith("faked") for line in text.splitlines())


def test_for_programs_describe_prints_the_answer_as_it_is(console: Console) -> None:
    in_trouble_at(console)
    whole: Any = msgspec.json.decode(describe(console, "-o", "json"))
    assert whole["flow"]["bound"] == "breaker"
    assert describe(console, "-o", "csv").startswith("topic,partition,state")
