"""The audited partitions: topics are discovered, one plan counts each, and doubt ends no job."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from app.audit.definition import AuditPlan
from app.audit.topics.catalog import AuditsCatalog
from app.controllog.events import AuditDeleted, AuditPut
from app.controllog.state import ControlState
from app.failover.topology import Layout, Site
from switchyard.audit.model.reports import Scope

LAYOUT = Layout(
    "east",
    {
        "home": Site("east", "regional"), "away": Site("east", "aggregate"),
        "other": Site("west", "regional"),
    },
    "home",
)  # fmt: skip


class ByHand:
    """A control log, and topics that the test sets."""

    def __init__(self) -> None:
        self.view, self.incidents = ControlState(), list[tuple[str, ...]]()
        log: Any = SimpleNamespace(view=self.view, worker="", caught_up=True)
        nowhere: Any = None
        self.catalog = AuditsCatalog(
            log, nowhere, lambda *incident: self.incidents.append(incident[:4]), LAYOUT, lambda _: None
        )

    def put(self, name: str, *topics: str, **spec: Any) -> AuditPut:
        plan = AuditPlan.model_validate(
            {
                "apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": name},
                "spec": {"topics": list(topics), **spec},
            }
        )  # fmt: skip
        put = AuditPut(at_ms=1, key=plan.key, definition=plan.to_wire(), etag=plan.etag(), actor="test")
        assert self.view.apply(put)
        return put

    def listed(self, cluster: str, now_s: float = 100.0, **sizes: int) -> None:
        topics = self.catalog._topics[cluster]
        topics.update_sizes(sizes, now_s)
        topics.listed_at_s = now_s

    def jobs(self, *held: str) -> list[str]:
        assigned: defaultdict[str, list[str]] = defaultdict(list)
        for job in held:
            assigned[job.rpartition(":")[0]].append(job)
        return sorted(set(self.catalog.jobs(assigned)))


@pytest.fixture
def region() -> ByHand:
    return ByHand()


def test_every_partition_of_matching_topics_is_a_job_of_its_cluster(region: ByHand) -> None:
    region.put("all", "orders.*")
    region.listed("home", orders=2, other=1)
    region.listed("away", orders_x=1)

    assert region.jobs() == [
        "audit:all//away:orders_x:0", "audit:all//home:orders:0", "audit:all//home:orders:1",
    ]  # fmt: skip
    region.listed("home", orders=3, orders_new=1)
    assert set(region.jobs()) > {"audit:all//home:orders:2", "audit:all//home:orders_new:0"}


def test_the_first_plan_by_name_counts_a_topic(region: ByHand) -> None:
    region.put("b", ".*", clusters=["home"])
    region.listed("home", orders=1, payments=1)
    region.put("a", "orders", clusters=["regional"])

    assert region.jobs() == ["audit:a//home:orders:0", "audit:b//home:payments:0"]
    assert region.view.apply(AuditDeleted(at_ms=2, key="audit:a", actor="test"))
    assert region.jobs() == ["audit:b//home:orders:0", "audit:b//home:payments:0"]


def test_missing_knowledge_ends_no_job(region: ByHand) -> None:
    put = region.put("all", "orders")
    bad = {**put.definition, "spec": {}}
    assert region.view.apply(AuditPut(at_ms=3, key="audit:bad", definition=bad, etag="x", actor="test"))
    held = ["audit:all//home:orders:0", "audit:bad//home:any:0"]

    assert region.jobs(*held, "audit:all//home:gone:0", "audit:never//home:orders:0") == held
    assert [incident[:2] for incident in region.incidents] == [("audit-trouble", "bad")]


def test_a_deleted_topic_ends_its_jobs(region: ByHand) -> None:
    region.put("all", "orders")
    region.listed("home", orders=1)
    held = region.jobs()
    region.listed("home", now_s=101.0)
    assert region.jobs(*held) == held, "it may be back in a moment"
    region.listed("home", now_s=112.0)
    assert region.jobs(*held) == []


def test_control_topics_are_counted_only_by_name(region: ByHand) -> None:
    region.put("all", ".*", "switchyard-east-control")
    region.catalog._topics["home"].update_sizes(
        {"switchyard-east-control": 1, "switchyard-east-audit": 8}, 1.0
    )
    region.catalog._topics["home"].listed_at_s = 1.0
    assert region.jobs() == ["audit:all//home:switchyard-east-control:0"]


def test_deviations_of_clients_from_the_plan_are_described(region: ByHand) -> None:
    region.put("all", "orders", window="1m", lateness="9s", clusters=["home"])
    descriptions = {
        scope: region.catalog.oddity_of(scope)
        for scope in (
            Scope("orders", "consumer", "home", 60_000),
            Scope("orders", "consumer", "", 60_000),
            Scope("orders", "consumer", "home", 600_000),
            Scope("orders", "consumer", "hom", 60_000),
            Scope("orders", "consumer", "away", 60_000),
            Scope("payments", "consumer", "home", 60_000),
            Scope("payments", "regional", "home", 60_000),
        )
    }
    as_planned, nowhere, width, misspelt, other, unplanned, ours = descriptions.values()
    assert as_planned == nowhere == ours == ""
    assert "client needs window_ms=60000" in width
    assert "cluster hom is not one of away, home, other" in misspelt
    assert "no audit plan matches topic orders in cluster away" in other
    assert "no audit plan matches topic payments" in unplanned
    assert region.catalog.bounds_of("hom", "orders").lateness_ms == 9_000
