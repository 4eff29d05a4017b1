"""A topic that vanished is an incident until it is back; one that an operator excludes is none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.audit.topics.catalog import AuditsCatalog
from app.controllog.events import Claim, Released, RouteDeleted
from app.dev.yard import Yard
from app.dev.yard.security import ADMIN
from app.dispatch.topics import catalog as module
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.replicate.topics import catalog as topics_catalog
from app.worker.jobs import topic_inventory
from app.worker.jobs.vanished_topics import MAX_REPORTED, ExpectedTopic, TopicPresence, VanishedTopics
from tests.audit.topics.test_catalog import ByHand
from tests.kafka.acls import DESCRIBE, DESCRIBE_CONFIGS, READ, TOPIC, Acls, spec_of
from tests.replicate.topics.test_catalog import TwoClusters
from tests.web.runtime_fake import assigned, definition, put

USER = "switchyard"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_catalog, "REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "TOPIC_GONE_AFTER_S", 0.2)
    monkeypatch.setattr(topic_inventory, "SETTINGS_INTERVAL_S", 0.0)
    monkeypatch.setattr(topic_inventory, "TOPIC_GONE_AFTER_S", 0.2)


@pytest.fixture
async def two(yard: Yard, topic_name: str) -> AsyncIterator[TwoClusters]:
    made = TwoClusters(yard, topic_name)
    yield made
    await made.clusters.stop()


def incidents(two: TwoClusters) -> list[tuple[str, str]]:
    return [(kind, subject) for kind, subject, _, _ in two.incidents if kind.startswith("topic-")]


def shown(two: TwoClusters) -> set[tuple[str, str, str]]:
    """Kind, name and state of each vanished topic."""
    found = two.catalog.vanished_topics.of.values()
    return {(one.topic.kind, one.topic.topic.removeprefix(f"{two.prefix}."), one.state) for one in found}


async def rounds(two: TwoClusters, condition: Callable[[], bool]) -> None:
    """Runs rounds of the leader until the condition holds."""
    await two.rounds(lambda _: condition())


async def end(two: TwoClusters, job: str) -> None:
    """The owner releases the job because the leader ended it."""
    reason = two.catalog.vanished_topics.why_gone(job)
    await two.append(Released(at_ms=0, job=job, worker="worker-a", epoch=1, reason=reason))


async def test_a_deleted_topic_of_a_pattern_is_an_incident_until_it_is_back(
    two: TwoClusters,
) -> None:
    for topic in ("orders", "refunds"):
        await two.make("east", two.name(topic), 1)
    await two.deploy()
    await two.until({"mirror orders": {0}, "mirror refunds": {0}})
    await two.append(*(assigned(job) for job in await two.catalog.jobs()))
    await two.delete("east", two.name("orders"))
    await two.until({"mirror refunds": {0}})

    assert shown(two) == {("route", "orders", "absent")}
    assert incidents(two) == [("topic-vanished", "mirror")]
    (remedy,) = [incident[3] for incident in two.incidents if incident[0] == "topic-vanished"]
    assert f"switchyard route drop-topic mirror {two.name('orders')}" in remedy
    topics = two.catalog.routes.topics_of("mirror")
    assert topics is not None
    states = {row["topic"]: (row["state"], row["partitions"]) for row in map(topics.row, topics.topics)}
    assert states == {two.name("orders"): ("vanished", 0), two.name("refunds"): ("copied", 1)}

    of_former = two.is_over["topic-vanished"]
    assert not of_former()
    # After its job has ended, a leader that has never seen the topic knows that it vanished.
    await end(two, f"replicate:mirror:{two.name('orders')}:0")
    await two.append(Claim(at_ms=0, term=1, worker="worker-b"))
    two.restart()
    assert not shown(two)
    await rounds(two, lambda: shown(two) == {("route", "orders", "absent")})
    await two.until({"mirror refunds": {0}})
    assert (bool(of_former()), two.is_over["topic-vanished"]()) == (True, False), (
        "the new leader reports it itself"
    )

    two.incidents.clear()
    await two.make("east", two.name("orders"), 1)
    await two.until({"mirror orders": {0}, "mirror refunds": {0}})
    assert not shown(two)
    assert incidents(two) == [("topic-returned", "mirror")]
    assert two.is_over["topic-vanished"]()


async def test_a_topic_removed_from_its_route_is_no_incident_when_it_is_deleted(
    two: TwoClusters,
) -> None:
    for topic in ("orders", "refunds", "kept"):
        await two.make("east", two.name(topic), 1)
    await two.deploy()
    await two.until({"mirror orders": {0}, "mirror refunds": {0}, "mirror kept": {0}})
    await two.append(*(assigned(job) for job in await two.catalog.jobs()))
    await two.deploy(exclude=[two.name("orders")])
    await two.until({"mirror refunds": {0}, "mirror kept": {0}})
    await end(two, f"replicate:mirror:{two.name('orders')}:0")
    await two.delete("east", two.name("orders"))
    await two.deploy()  # the route names it again, but it is missing: the owner has released its job already
    await two.until({"mirror refunds": {0}, "mirror kept": {0}})
    assert not shown(two)

    await two.delete("east", two.name("refunds"))
    await rounds(two, lambda: bool(shown(two)))
    assert not two.is_over["topic-vanished"]()
    await two.deploy(exclude=[two.name("refunds")])  # the operator agrees: it is over
    await rounds(two, lambda: not shown(two))
    assert two.is_over["topic-vanished"]()
    await two.append(RouteDeleted(at_ms=0, key="mirror", actor="me"))
    await two.until({})
    assert incidents(two) == [("topic-vanished", "mirror")]


@pytest.mark.deep(minutes=0.2)
async def test_a_topic_without_describe_permission_keeps_its_jobs_and_is_an_incident_with_the_remedy(
    secured: Yard, topic_name: str
) -> None:
    specs = {
        name: spec_of(secured, cluster, USER, name)
        for name, cluster in (("east", "east-regional"), ("west", "east-aggregate"))
    }
    two, admins = TwoClusters(secured, topic_name, specs), []
    orders = two.name("orders")
    for cluster in ("east-regional", "east-aggregate"):
        admins.append(ClusterClient(spec_of(secured, cluster, ADMIN)))
        await admins[-1].start()
        await ensure_topics(admins[-1], [TopicSpec(orders, 1, 1)])
    here, there = map(Acls, admins)
    try:
        await here.allow(USER, TOPIC, orders, READ, DESCRIBE_CONFIGS)
        await there.allow(USER, TOPIC, orders, READ, DESCRIBE, DESCRIBE_CONFIGS)
        await two.deploy()
        await two.until({"mirror orders": {0}})
        await two.append(*(assigned(job) for job in await two.catalog.jobs()))
        await here.withdraw(USER, TOPIC, orders, READ)
        await rounds(two, lambda: shown(two) == {("route", "orders", "denied")})
        two.restart()  # another leader, which has never seen the topic
        await rounds(two, lambda: shown(two) == {("route", "orders", "denied")})
        assert await two.jobs() == {"mirror orders": {0}}
        ((_, _, message, remedy), *_) = [one for one in two.incidents if one[0] == "topic-vanished"]
        assert f"User:{USER} lacks Describe on topic {orders} in east" in message
        assert "kafka-acls.sh" in remedy
        assert (
            f"--allow-principal 'User:{USER}' --operation Describe --operation Read --topic {orders}"
            in remedy
        )

        await here.allow(USER, TOPIC, orders, READ)
        await rounds(two, lambda: not shown(two))
        assert await two.jobs() == {"mirror orders": {0}}
        assert incidents(two)[-1] == ("topic-returned", "mirror")
    finally:
        await two.clusters.stop()
        for admin in admins:
            await admin.stop()


async def test_a_workload_whose_topic_is_deleted_keeps_its_jobs_and_is_an_incident(two: TwoClusters) -> None:
    orders = two.name("orders")
    await two.make("east", orders, 1)
    await two.append(put(definition("billing", orders)))
    while f"dispatch:billing/{orders}:{orders}:0" not in (jobs := await two.catalog.jobs()):
        pass
    await two.append(*(assigned(job) for job in jobs))
    await two.delete("east", orders)
    while not two.catalog.vanished_topics.of:
        assert jobs <= await two.catalog.jobs()
    assert shown(two) == {("workload", "orders", "absent")}
    assert incidents(two) == [("topic-vanished", f"billing/{orders}")]
    await two.make("east", orders, 1)
    while two.catalog.vanished_topics.of:
        assert jobs <= await two.catalog.jobs()
    assert incidents(two)[1:] == [("topic-returned", f"billing/{orders}")]


def test_a_topic_of_an_audit_plan_that_is_gone_is_an_incident_until_the_plan_leaves_it_out() -> None:
    region = ByHand()
    catalog: AuditsCatalog = region.catalog
    clusters: Any = None
    reported: list[tuple[str, ...]] = []
    vanished = VanishedTopics(clusters, lambda *one: reported.append(one[:4]))
    region.put("all", "orders|refunds")
    region.listed("home", orders=1, refunds=1)
    held = {"audit:all//home:orders": ["audit:all//home:orders:0"]}
    assert region.view.apply(assigned("audit:all//home:orders:0"))

    def look() -> None:
        vanished.update(catalog.found(held))

    look()
    region.listed("home", now_s=101.0, refunds=1)
    look()
    assert not vanished.of, "it may be back in a moment"
    region.listed("home", now_s=101.0 + 10, refunds=1)
    look()
    assert list(vanished.of.values()) == [
        TopicPresence(ExpectedTopic("audit plan", "all", "home", "orders"), "absent")
    ]
    catalog._topics.clear()  # another term: nothing is known
    look()
    assert vanished.of
    region.put("all", "orders|refunds", exclude=["orders"])
    look()
    assert not vanished.of
    assert [one[:2] for one in reported] == [("topic-vanished", "all")]


def test_thousands_of_topics_that_vanish_at_once_are_few_incidents_and_all_are_shown() -> None:
    reported: list[tuple[str, ...]] = []
    clusters: Any = None
    vanished = VanishedTopics(clusters, lambda *one: reported.append(one[:4]))
    all_of_them = [
        (f"replicate:mirror:t{n}", TopicPresence(ExpectedTopic("route", "mirror", "east", f"t{n}"), "absent"))
        for n in range(5_000)
    ]
    vanished.update(all_of_them)
    assert len(vanished.of) == 5_000
    assert len(reported) == MAX_REPORTED + 1
    assert f"{5_000 - MAX_REPORTED} more topics" in reported[-1][2]
    vanished.update(all_of_them)
    assert len(reported) == MAX_REPORTED + 1, "reported once"
