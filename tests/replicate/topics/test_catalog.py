"""The jobs of routes between two real clusters: topics are found, prepared at the destination, and dropped
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from app.controllog.events import AnyControlEvent, Claim, DestinationTopic, Released, RouteDeleted
from app.controllog.state import ControlState
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.topic_configs import alter, describe, expand
from app.kafka.client.topics import INVALID_NAME, TopicSpec, ensure_topics
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.kernel.incidents import IsOver
from app.placement.model.round import GONE
from app.replicate.api.foreseen_topics import foresee_topics
from app.replicate.definition import RouteDefinition
from app.replicate.model.copy_graph import OtherRegions
from app.replicate.model.route import RENAME
from app.replicate.topics import catalog, source_ends, targets
from app.replicate.topics.new_copies import new_copies, refused_copies
from app.worker.catalog import Catalog
from app.worker.jobs import topic_inventory
from app.worker.jobs.topic_inventory import ClusterTopics
from app.worker.readable_definitions import ReadableDefinitions
from tests.kafka.conftest import producing, write
from tests.web.runtime_fake import Alone, assigned, put_route, route

PATIENCE_S = 150.0


class TwoClusters:
    """A simulated control log, two real clusters, and the leader's catalog of them."""

    def __init__(self, yard: Yard, prefix: str, specs: dict[str, ClusterSpec] | None = None) -> None:
        self.prefix = prefix
        self.view = ControlState()
        self.incidents: list[tuple[str, str, str, str]] = []
        self.is_over: dict[str, IsOver] = {}  # by the kind that was reported last
        specs = specs or {
            "east": ClusterSpec("east", (yard.bootstrap("east-regional"),)),
            "west": ClusterSpec("west", (yard.bootstrap("east-aggregate"),)),
            "away": ClusterSpec("away", ("127.0.0.1:1",)),
            "east-vip": ClusterSpec("east-vip", (yard.bootstrap("east-regional"),)),  # another name of east
        }
        self.clusters = DataClusters(specs, self._nowhere, ByteBudget(1 << 20))
        self.events: list[AnyControlEvent] = []
        self.other_regions = OtherRegions()
        self.restart()

    async def _nowhere(self, _: Any) -> None: ...

    def restart(self) -> None:
        """Replaces the leader by one that knows nothing yet."""
        log: Any = SimpleNamespace(view=self.view, worker="", append=self.append)
        definitions = ReadableDefinitions(log, self._report)
        self.catalog = Catalog(
            log, self.clusters, self._report, definitions, Alone(), lambda: self.other_regions
        )

    def _report(
        self, kind: str, subject: str, message: str, remedy: str, is_over: IsOver | None = None
    ) -> None:
        self.incidents.append((kind, subject, message, remedy))
        if is_over is not None:
            self.is_over[kind] = is_over

    async def append(self, *events: AnyControlEvent) -> int:
        for event in events:
            assert self.view.apply(event)
            self.events.append(event)
        return 0

    def name(self, topic: str) -> str:
        return f"{self.prefix}.{topic}"

    async def deploy(self, name: str = "mirror", *topics: str, **spec: Any) -> None:
        source, target = spec.pop("source", "east"), spec.pop("target", "west")
        entries = topics or (f"{self.prefix}\\..*",)
        await self.append(put_route(route(name, source, target, *entries, **spec)))

    async def make(self, cluster: str, topic: str, partitions: int, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        client = (await self.clusters.get(cluster)).client
        await ensure_topics(client, [TopicSpec(topic, partitions, config=settings)])

    async def fill(self, topic: str) -> None:
        """Writes a record to a destination topic."""
        async with producing(self.clusters.specs["west"].bootstrap[0]) as producer:
            await producer.send_and_wait(topic, b"value", key=b"key")

    async def jobs(self) -> dict[str, set[int]]:
        """ "route topic" -> partitions of the jobs."""
        found: dict[str, set[int]] = {}
        for job in await self.catalog.jobs():
            kind, name, topic, partition = job.split(":")
            assert kind == "replicate"
            found.setdefault(f"{name} {topic.removeprefix(self.prefix + '.')}", set()).add(int(partition))
        return found

    async def until(self, jobs: dict[str, set[int]]) -> None:
        """Runs the leader's rounds until it has these jobs."""
        await self.rounds(lambda found: found == jobs, str(jobs))

    async def rounds(self, good: Callable[[dict[str, set[int]]], bool], wanted: str = "") -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not good(found := await self.jobs()):
            assert time.monotonic() < until_s, (found, wanted, self.incidents)
            await asyncio.sleep(0.02)

    async def topic(self, cluster: str, topic: str) -> tuple[int | None, dict[str, str]]:
        """The topic's partitions and its own settings."""
        client = (await self.clusters.get(cluster)).client
        found = (await describe(client, [topic]))[topic]
        assert not isinstance(found, Exception), found
        return await client.partitions(topic), {name: found.config[name] for name in found.own}

    def changes(self, topic: str) -> list[tuple[str, str | None, str | None]]:
        """The recorded changes of a destination topic, in their order."""
        return [
            change
            for event in self.events
            if isinstance(event, DestinationTopic) and event.topic == topic
            for change in event.changes
        ]

    async def until_set(self, topic: str, name: str, value: str | None) -> None:
        """Runs the leader's rounds until the destination topic has this setting of its own; None: none."""
        until_s = time.monotonic() + PATIENCE_S
        while (found := (await self.topic("west", topic))[1]).get(name) != value:
            assert time.monotonic() < until_s, (found, self.incidents)
            await self.jobs()

    async def settle(self) -> None:
        """Runs rounds until the leader has read both clusters twice more."""
        inventories = [self.catalog.routes._topics[cluster] for cluster in ("east", "west")]
        for _ in range(2):
            began_s, until_s = time.monotonic(), time.monotonic() + PATIENCE_S
            while any(topics.read_at_s < began_s for topics in inventories):
                assert time.monotonic() < until_s
                await self.jobs()
                await asyncio.sleep(0.01)

    async def delete(self, cluster: str, topic: str) -> None:
        admin = AIOKafkaAdminClient(**self.clusters.specs[cluster].aiokafka_options())
        await admin.start()
        await admin.delete_topics([topic])
        await admin.close()


@pytest.fixture
async def two(yard: Yard, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TwoClusters]:
    monkeypatch.setattr(catalog, "REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(topic_inventory, "SETTINGS_INTERVAL_S", 0.0)
    monkeypatch.setattr(topic_inventory, "TOPIC_GONE_AFTER_S", 0.2)
    made = TwoClusters(yard, topic_name)
    yield made
    await made.clusters.stop()


async def test_topics_are_found_created_like_the_source_expanded_and_configured_live(
    two: TwoClusters,
) -> None:
    orders = two.name("orders")
    await two.make("east", orders, 2, retention_ms="3600000", max_message_bytes="2000000")
    await two.deploy()
    await two.until({"mirror orders": {0, 1}})
    partitions, own = await two.topic("west", orders)
    assert partitions == 2
    assert (own["retention.ms"], own["max.message.bytes"]) == ("3600000", "2000000")

    await two.make("east", two.name("refunds"), 1)  # a topic that is new
    await two.until({"mirror orders": {0, 1}, "mirror refunds": {0}})
    east = (await two.clusters.get("east")).client
    assert await expand(east, {orders: 4}) == {}
    await two.until({"mirror orders": {0, 1, 2, 3}, "mirror refunds": {0}})
    assert (await two.topic("west", orders))[0] == 4
    assert await alter(east, {orders: {"retention.ms": "7200000"}}) == {}

    async def followed() -> bool:
        await two.jobs()
        return (await two.topic("west", orders))[1]["retention.ms"] == "7200000"

    until_s = time.monotonic() + PATIENCE_S
    while not await followed():
        assert time.monotonic() < until_s
    assert two.incidents == []


async def test_a_topic_with_records_of_others_keeps_its_retention_until_the_route_adopts_it(
    two: TwoClusters,
) -> None:
    orders = two.name("orders")
    await two.make("east", orders, 2, segment_ms="3600000")
    await two.make("west", orders, 1, cleanup_policy="compact", retention_ms="3600000")
    await two.fill(orders)
    await two.deploy("mirror", orders)
    await two.until({"mirror orders": {0, 1}})
    await two.settle()
    await two.until_set(orders, "segment.ms", "3600000")
    assert (await two.topic("west", orders))[1] == {
        "cleanup.policy": "compact", "retention.ms": "3600000", "segment.ms": "3600000",
    }  # fmt: skip
    assert two.changes(orders) == [("partitions", "1", "2"), ("segment.ms", "604800000", "3600000")]
    ((kind, subject, message, remedy),) = two.incidents
    assert (kind, subject) == ("route-topic", "mirror")
    assert message == (
        f"topic {orders} in west: it has records, and Switchyard did not see it empty, so cleanup.policy "
        "stays compact (source: the default), retention.ms stays 3600000 (source: the default)"
    )
    assert remedy.startswith("write sync.adopt: true to let the route change them, which may delete records")
    topics = two.catalog.routes.topics_of("mirror")
    assert topics is not None
    assert topics.row(orders)["why"].endswith(f"{message.partition(': ')[2]}; {remedy}")

    # Neither another leader nor another route that has copied meanwhile takes the records for copies.
    await two.fill(orders)
    two.restart()
    await two.append(RouteDeleted(at_ms=0, key="mirror", actor="me"))
    await two.deploy("next", orders)
    await two.until({"next orders": {0, 1}})
    await two.settle()
    assert (await two.topic("west", orders))[1]["cleanup.policy"] == "compact"

    await two.deploy("next", orders, sync={"adopt": True})
    await two.until_set(orders, "cleanup.policy", None)
    await two.until_set(orders, "retention.ms", None)
    assert two.changes(orders)[2:] == [("cleanup.policy", "compact", None), ("retention.ms", "3600000", None)]


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_topic_that_was_empty_or_missing_follows_its_source_also_once_it_has_copies(
    two: TwoClusters, is_there: bool
) -> None:
    orders = two.name("orders")
    await two.make("east", orders, 1)
    if is_there:
        await two.make("west", orders, 1, cleanup_policy="compact")
    await two.deploy("mirror", orders)
    await two.until({"mirror orders": {0}})
    await two.until_set(orders, "cleanup.policy", None)
    await two.fill(orders)
    two.restart()
    await two.append(RouteDeleted(at_ms=0, key="mirror", actor="me"))
    await two.deploy("next", orders)
    east = (await two.clusters.get("east")).client
    assert await alter(east, {orders: {"cleanup.policy": "compact"}}) == {}
    await two.until_set(orders, "cleanup.policy", "compact")
    assert two.changes(orders)[-1] == ("cleanup.policy", "delete", "compact")
    assert two.incidents == []


async def test_a_topic_that_somebody_recreated_with_records_is_not_taken_for_the_routes_own(
    two: TwoClusters,
) -> None:
    orders = two.name("orders")
    await two.make("east", orders, 1)
    await two.deploy("mirror", orders)
    await two.until({"mirror orders": {0}})
    await two.settle()
    await two.delete("west", orders)
    west = (await two.clusters.get("west")).client
    until_s = time.monotonic() + PATIENCE_S
    while await west.partitions(orders) is not None:
        assert time.monotonic() < until_s
        await asyncio.sleep(0.02)
    await two.make("west", orders, 1, cleanup_policy="compact")
    await two.fill(orders)
    await two.rounds(lambda _: any("cleanup.policy stays compact" in one[2] for one in two.incidents))
    assert (await two.topic("west", orders))[1]["cleanup.policy"] == "compact"


async def test_a_deployment_foresees_each_topic_that_is_created_grown_or_altered_and_each_that_keeps_settings(
    two: TwoClusters,
) -> None:
    new, theirs = two.name("new"), two.name("theirs")
    await two.make("east", new, 3, retention_ms="3600000")
    await two.make("east", theirs, 2, segment_ms="3600000")
    await two.make("west", theirs, 1, cleanup_policy="compact")
    await two.fill(theirs)
    api: Any = SimpleNamespace(
        away_until_s={},
        runtime=SimpleNamespace(clusters=two.clusters, control=SimpleNamespace(view=two.view)),
    )

    async def topics_at(cluster: str) -> dict[str, int]:
        return await (await two.clusters.get(cluster)).client.topics()

    async def foreseen(**spec: Any) -> tuple[list[tuple[Any, ...]], list[str]]:
        definition = RouteDefinition.model_validate(route("mirror", "east", "west", new, theirs, **spec))
        found = await foresee_topics(api, definition, [], topics_at)
        assert {change["cluster"] for change in found.changes} == {"west"}
        rows = [(c["action"], c["topic"], c["setting"], c["old"], c["new"]) for c in found.changes]
        return [
            row for row in rows if row[2] not in {"max.message.bytes", "min.insync.replicas"}
        ], found.notes

    created = [
        ("create", new, "partitions", None, "3"),
        ("create", new, "message.timestamp.type", None, "CreateTime"),
        ("create", new, "retention.ms", None, "3600000"),
    ]
    grown = ("grow", theirs, "partitions", "1", "2")
    altered = ("alter", theirs, "segment.ms", "604800000", "3600000")
    changes, (note,) = await foreseen()
    assert changes == [*created, grown, altered]
    assert note.startswith(
        f"topic {theirs} in west: it has records, and Switchyard did not see it empty, so cleanup.policy"
    )
    changes, notes = await foreseen(sync={"adopt": True})
    assert (changes, notes) == (
        [*created, grown, ("alter", theirs, "cleanup.policy", "compact", None), altered],
        [],
    )
    assert await (await two.clusters.get("west")).client.partitions(new) is None, "nothing was made"


async def test_jobs_of_dropped_and_of_deleted_topics_end(two: TwoClusters) -> None:
    for topic in ("a", "b", "c"):
        await two.make("east", two.name(topic), 1)
    await two.deploy()
    await two.until({"mirror a": {0}, "mirror b": {0}, "mirror c": {0}})
    await two.append(*(assigned(job) for job in await two.catalog.jobs()))
    await two.deploy(exclude=[two.name("b")])
    await two.until({"mirror a": {0}, "mirror c": {0}})
    await two.delete("east", two.name("c"))
    await two.until({"mirror a": {0}})
    await two.append(RouteDeleted(at_ms=0, key="mirror", actor="me"))
    await two.until({})


async def test_many_sources_of_one_topic_are_planned_together_also_of_several_routes(
    two: TwoClusters,
) -> None:
    one, other, copy = two.name("one"), two.name("two"), two.name("all")
    await two.make("east", one, 1, retention_ms="1000")
    await two.make("east", other, 3, retention_ms="2000")
    await two.deploy("first", one, rename={"names": {one: copy}})
    await two.deploy("second", other, rename={"names": {other: copy}})
    await two.until({"first one": {0}, "second two": {0, 1, 2}})
    partitions, own = await two.topic("west", copy)
    assert partitions == 3
    assert "retention.ms" not in own
    disagree = {(subject, "the sources disagree" in message) for _, subject, message, _ in two.incidents}
    assert disagree == {("first", True), ("second", True)}
    assert len(two.incidents) == 2, "reported once"


async def test_a_routes_start_is_recorded_once_and_later_topics_are_copied_from_their_start(
    two: TwoClusters, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_ends, "PART_BYTES", 1)  # an event each
    a, b, later = (two.name(topic) for topic in ("a", "b", "later"))
    ids: dict[str, str] = {}

    def begins() -> list[int | None]:
        at = ((a, 0), (a, 1), (b, 0), (later, 0), (b, 1))
        return [two.view.begins_at("mirror", topic, one, ids.get(topic, "")) for topic, one in at]

    for topic, partitions in ((a, 2), (b, 1)):
        await two.make("east", topic, partitions)
    await write(yard.bootstrap("east-regional"), a, [b"1", b"2"], partition=1)
    await two.deploy(start="latest")
    await two.until({"mirror a": {0, 1}, "mirror b": {0}})
    client = (await two.clusters.get("east")).client
    ids |= await client.topic_ids([a, b])
    assert begins() == [0, 2, 0, None, None]
    assert len(two.view.start_parts_of("mirror")) == 2
    # Neither what is written, nor an edit, nor another leader moves it; what is found later had no end then.
    for topic in (a, b):
        await write(yard.bootstrap("east-regional"), topic, [b"3"])
    await two.make("east", later, 1)
    assert await expand(client, {b: 2}) == {}
    await two.deploy(start="latest", checkpoint={"every": "1s"})
    two.view.term += 1
    two.restart()
    await two.until({"mirror a": {0, 1}, "mirror b": {0, 1}, "mirror later": {0}})
    assert begins() == [0, 2, 0, None, None]
    assert two.incidents == []


async def test_a_blocked_topic_is_reported_with_the_remedy_and_starts_once_it_is_mended(
    two: TwoClusters,
) -> None:
    orders = two.name("orders")
    await two.make("east", orders, 2)
    await two.deploy(sync={"create": False})
    await two.rounds(lambda _: bool(two.incidents))
    for _ in range(3):
        assert await two.jobs() == {}
    ((kind, subject, message, remedy),) = two.incidents
    assert (kind, subject) == ("route-blocked", "mirror")
    assert f"topic {orders} in west: the destination topic does not exist" in message
    assert remedy == "create it, or write sync.create: true"
    topics = two.catalog.routes.topics_of("mirror")
    assert topics is not None
    assert [(topic, topics.row(topic)["state"]) for topic in topics.topics] == [(orders, "blocked")]
    await two.make("west", orders, 2)
    await two.until({"mirror orders": {0, 1}})


async def test_a_change_that_the_destination_refuses_is_reported_and_affects_only_that_topic(
    two: TwoClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "TOPIC_RETRY_INTERVAL_S", 3600.0)
    await two.make("east", two.name("orders"), 1)
    await two.make("east", two.name("good"), 1)
    # More replicas than there are brokers: only one of the routes asks for that.
    await two.deploy("greedy", two.name("orders"), sync={"replication": 50})
    await two.deploy("modest", two.name("good"))
    await two.rounds(lambda found: found == {"modest good": {0}} and len(two.incidents) >= 1)
    ((kind, subject, message, remedy),) = two.incidents
    assert (kind, subject) == ("route-blocked", "greedy")
    assert "could not be created" in message
    assert remedy.startswith("remove the reason, or create the topic in a way")


async def test_a_copy_whose_name_collides_is_reported_in_the_brokers_words_and_affects_no_other(
    two: TwoClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "TOPIC_RETRY_INTERVAL_S", 0.0)  # reported once, however often it is tried
    there, taken, good = (two.name(topic) for topic in ("pay_eu", "pay.eu", "good"))
    await two.make("west", there, 1)
    await two.make("east", good, 1)
    await two.deploy()
    await two.until({"mirror good": {0}})
    await two.make("east", taken, 1)  # later
    await two.make("east", two.name("later"), 1)
    await two.rounds(lambda found: found == {"mirror good": {0}, "mirror later": {0}} and bool(two.incidents))
    for _ in range(20):
        await two.jobs()
        topics = two.catalog.routes.topics_of("mirror")
        assert topics is not None
        row = topics.row(taken)
        assert (row["state"], there in row["why"]) == ("blocked", True), row
    ((kind, subject, message, remedy),) = two.incidents
    assert (kind, subject) == ("route-blocked", "mirror")
    assert message.startswith(f"nothing new is copied to topic {taken} in west: could not be created: ")
    assert f"collides with existing topic: {there} (InvalidTopicError, error 17)" in message
    assert remedy == f"{RENAME} (the worker retries every minute)"
    await two.delete("west", there)
    await two.until({"mirror good": {0}, "mirror later": {0}, "mirror pay.eu": {0}})
    assert len(two.incidents) == 1


async def test_a_deployment_asks_the_destination_for_the_copies_that_are_new(two: TwoClusters) -> None:
    there, taken, free = (two.name(topic) for topic in ("pay_eu", "pay.eu", "free_x"))
    await two.make("west", there, 1)
    await two.make("west", two.name("free_x"), 1)
    west = (await two.clusters.get("west")).client
    named, expressed, renamed = (
        RouteDefinition.model_validate(route("mirror", "east", "west", *entries, **spec))
        for entries, spec in (
            ((taken, free), {}),
            ((f"{two.prefix}\\..*",), {}),
            ((taken, free), {"rename": {"names": {taken: two.name("other")}}}),
        )
    )
    for definition, at_source in ((named, []), (expressed, [taken, free, "unmeant"])):
        copies = new_copies(definition.route(), None, at_source)
        assert copies == ([free, taken], None)
        (refused,) = await refused_copies(west, copies.names)
        assert refused.code == INVALID_NAME
        assert f"collides with existing topic: {there}" in str(refused)
    assert await refused_copies(west, new_copies(renamed.route(), None, []).names) == []
    assert new_copies(expressed.route(), named.route(), [taken]).names == [], "it is copied already"
    (_, twins) = new_copies(expressed.route(), None, [taken, there, free])
    assert twins is not None
    assert (taken in str(twins), there in str(twins)) == (True, True)
    assert await west.partitions(taken) is None, "no topic was created"


@pytest.mark.parametrize("end", ["source", "target"])
async def test_while_a_cluster_is_away_assigned_jobs_stay_and_others_are_found(
    two: TwoClusters, end: str
) -> None:
    await two.make("east", two.name("near"), 1)
    clusters: dict[str, str] = {"source": "away"} if end == "source" else {"target": "away"}
    await two.deploy("far", two.name("orders"), **clusters)
    await two.deploy("here", two.name("near"))
    far = f"replicate:far:{two.name('orders')}:"
    ended = f"replicate:far:{two.name('orders')}:2"
    if end == "target":
        await two.make("east", two.name("orders"), 3)
    await two.append(*(assigned(f"{far}{partition}") for partition in range(3)))
    await two.append(
        Released(at_ms=0, job=ended, worker="worker-a", epoch=1, reason=f"{GONE}: it was deleted")
    )
    await two.until({"far orders": {0, 1}, "here near": {0}})


@pytest.mark.parametrize("again", [False, True])
async def test_jobs_that_a_new_leader_does_not_know_yet_stay(
    two: TwoClusters, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    await two.make("east", two.name("orders"), 1)
    await two.deploy()
    await two.until({"mirror orders": {0}})
    await two.append(*(assigned(job) for job in await two.catalog.jobs()))
    if again:  # it led before: meanwhile another one found a partition more
        await two.append(assigned(f"replicate:mirror:{two.name('orders')}:1"))
        await two.append(Claim(at_ms=0, term=1, worker="worker-b"), Claim(at_ms=0, term=2, worker="worker-a"))
    else:
        two.restart()
    await asyncio.gather(*two.catalog.routes._reads.values())
    with monkeypatch.context() as patch:
        # no answer comes in time
        patch.setattr(ClusterTopics, "refresh", lambda *_, **__: asyncio.sleep(0.5))
        assert await two.jobs() == {"mirror orders": {0, 1} if again else {0}}
    await two.until({"mirror orders": {0}})


async def test_routes_that_would_loop_together_do_not_run_and_the_others_do(two: TwoClusters) -> None:
    for cluster in ("east", "west"):
        await two.make(cluster, two.name("orders"), 1)
    await two.make("east", two.name("fine"), 1)
    await two.deploy("there", two.name("orders"))
    await two.deploy("fine", two.name("fine"))
    await two.until({"there orders": {0}, "fine fine": {0}})
    # Deployed at the same moment at another worker, past both their checks.
    await two.deploy("back", two.name("orders"), source="west", target="east")
    await two.until({"fine fine": {0}})
    refused = [incident for incident in two.incidents if incident[0] == "route-refused"]
    assert {subject for _, subject, _, _ in refused} == {"there", "back"}
    assert all("would loop: " in message for _, _, message, _ in refused)
    await two.append(RouteDeleted(at_ms=0, key="back", actor="me"))
    await two.until({"there orders": {0}, "fine fine": {0}})


async def test_a_loop_by_another_name_of_a_cluster_or_through_another_region_is_halted_once_it_is_known(
    two: TwoClusters,
) -> None:
    for cluster in ("east", "west"):
        await two.make(cluster, two.name("orders"), 1)
    await two.deploy("there", two.name("orders"))
    await two.until({"there orders": {0}})
    await two.deploy("back", two.name("orders"), source="west", target="east-vip")
    await two.until({})  # "there" does not run if the loop was found before "back" could begin
    refused = {incident[1]: incident for incident in two.incidents if incident[0] == "route-refused"}
    assert refused.keys() == {"there", "back"}
    assert refused["back"][2].endswith("east and east-vip are the same cluster")
    await two.append(RouteDeleted(at_ms=0, key="back", actor="me"))
    await two.until({"there orders": {0}})

    two.incidents.clear()
    back = RouteDefinition.model_validate(route("back", "west", "east", two.name("orders"))).route()
    two.other_regions = OtherRegions({}, (replace(back, name="back of region west"),))
    await two.until({})
    ((kind, subject, message, _),) = two.incidents
    assert (kind, subject) == ("route-refused", "there")
    assert "(route back of region west)" in message
    two.other_regions = OtherRegions()
    await two.until({"there orders": {0}})
