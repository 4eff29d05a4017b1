"""Finds the partitions of the topics that workloads read: the main topic, retry tiers, merged and delayed
messages. On the leader it also creates missing retry topics and DLQs (`app.dispatch.topics.settings`), and
records the ends for `start: latest`.

    definitions -> sizes of a workload's topics (one request each) -> topics created, grown, checked
                -> backlog of topics that have jobs only while messages wait (`app.dispatch.topics.leftovers`)

Rules
1. A topic that cannot be read now keeps its last known size. Missing knowledge neither stops a job nor
   wakes one that the log calls hibernated.
2. Rounds do not wait for a cluster that answered late, until it answers in time again. So it delays no
   jobs of other clusters.
3. A wrong definition affects only its own workload, is shown until it is corrected, and its jobs stay.
   Jobs start even if the cluster refuses to create a retry topic or the DLQ.
4. A topic that had jobs and vanished is an incident (`app.worker.jobs.vanished_topics`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse
from uuid import uuid4

import structlog
from aiokafka.errors import KafkaError, for_code

from app.controllog.events import Assignment, StartRecorded
from app.controllog.leader_reports import NewTerm, until_deposed
from app.controllog.log import ControlLog
from app.dispatch.definition import DISPATCH_JOBS, Workload
from app.dispatch.topics.hibernation import HibernationTracker
from app.dispatch.topics.leftovers import TierLeftovers, candidates, is_left, partitions_of
from app.dispatch.topics.readable_workloads import ReadableWorkloads, WorkloadRoles
from app.dispatch.topics.settings import MAX_PARTITIONS, check_settings, create_topics, grow_topics
from app.kafka.client.cluster import TOPIC_UNKNOWN, ClusterClient, ClusterUnreachable
from app.kafka.client.needed_settings import SettingsProblem
from app.kafka.client.permissions import NOT_AUTHORISED, grant, lacks, principal
from app.kafka.client.topic_ids import UNKNOWN_ID
from app.kafka.client.topics import TopicRefused
from app.kafka.consumer_lag import read_backlog
from app.kafka.data_clusters import DataClusters
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident
from app.placement.model.plan import name_of
from app.placement.model.round import is_hibernated
from app.worker.jobs.topic_inventory import AUTHORISATION, TOPIC_GONE_AFTER_S, TopicExistence
from app.worker.jobs.vanished_topics import ExpectedTopic, TopicPresence, was_held

log = structlog.get_logger(__name__)

REFRESH_INTERVAL_S = 2.0
REFRESH_TIMEOUT_S = 0.25  # of a round, for clusters that answered in time before
CREATE_AGAIN_S = 30.0  # for a topic that the cluster refused to create
CHECK_AGAIN_S = 60.0  # for settings, which others may alter: one request for each workload
UNTIL_THEN = f"the leader tries again every {CREATE_AGAIN_S:g} s, and messages for that topic wait"


class _MayNotDescribe(Exception):
    """A workload's topic may not be described."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class WorkloadsCatalog:
    """The control log's workloads. On workers that do not lead, only `workload`, `runs_here` and
    `sender_role` are valid.

    Attributes:
        hibernation: Which workloads are idle and sleep.
        runs_here, sender_role: As in `WorkloadRoles`.
    """

    def __init__(
        self,
        control: ControlLog,
        clusters: DataClusters,
        report_incident: ReportIncident,
        workloads: ReadableWorkloads,
        roles: WorkloadRoles,
    ) -> None:
        self._control = control
        self._clusters = clusters
        self._report_incident = report_incident
        self._partitions: dict[tuple[str, str], int] = {}
        self._ids: dict[tuple[str, str], str] = {}  # of topics, from the time of the count
        self._read_at_s: dict[str, float] = {}
        self._prepared: dict[str, tuple[str, int]] = {}  # etag and partitions of the topic
        self._workloads = workloads
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._late: set[str] = set()  # clusters that did not answer in time
        self._reported: set[tuple[str, str]] = set()  # workload, message
        self._refused: dict[str, TopicRefused] = {}  # workload -> why one of its topics is not created
        self._create_again_s: dict[str, float] = {}  # workload -> when its missing topics are tried again
        # workload -> problems of its topics' settings, and when they are checked again
        self._wrong: dict[str, list[SettingsProblem]] = {}
        self._check_again_s: dict[str, float] = {}
        self._troubles: dict[str, str] = {}
        self._leftovers = TierLeftovers()
        self.hibernation = HibernationTracker()
        self._new_term = NewTerm()
        self._reported_left: set[tuple[str, str]] = set()  # workload, topic
        self._reported_unread: set[tuple[str, str, str]] = set()  # workload, topic, the definition's etag
        # workload -> the state of its topic, since when
        self._states: dict[str, tuple[TopicExistence, float]] = {}
        self.runs_here, self.sender_role = roles.runs_here, roles.sender_role

    def workload(self, key: str) -> Workload | None:
        """The definition in the control log; with a mode, its cluster is this region's own."""
        return self._workloads.get(key)

    def troubles(self) -> dict[str, str]:
        """The workloads' problems, each with its remedy. An unreadable definition comes before the others."""
        found = self._troubles | self._workloads.troubles()
        return {key: why for key, why in found.items() if key in self._control.view.workloads}

    # -- the leader's rounds -----------------------------------------------------------------------

    async def refresh(self, held: Mapping[str, Collection[str]]) -> None:
        """Reads workloads' topics again where that is due; waits at most `REFRESH_TIMEOUT_S`. `held`: see
        `jobs`."""
        if self._new_term.has_begun(self._control.view.term):
            self._reported.clear()
            self._reported_unread.clear()
        await self._refresh_all(self._owned(held))
        workloads = self._control.view.workloads
        self._leftovers.keep(workloads)
        self.hibernation.keep(workloads)
        for known in (self._read_at_s, self._prepared, self._states, self._refused, self._create_again_s,
                      self._wrong, self._check_again_s, self._troubles):  # fmt: skip
            for key in known.keys() - workloads.keys():
                del known[key]
        self._reported = {entry for entry in self._reported if entry[0] in workloads}
        self._reported_unread = {entry for entry in self._reported_unread if entry[0] in workloads}

    def jobs(self, held: Mapping[str, Collection[str]]) -> Iterator[str]:
        """Every job of every workload. `held`: the control log's jobs that do not hibernate, by their name
        without the partition."""
        view = self._control.view
        for key in list(view.workloads):
            workload = self.workload(key)
            runs = None if workload is None else self.runs_here(workload)
            if workload is None or runs is None:
                own = f"{DISPATCH_JOBS}{key}:"
                yield from (job for prefix, jobs in held.items() if prefix.startswith(own) for job in jobs)
            elif runs and workload.spec.hibernate is not None and not self.hibernation.knows(key):
                is_asleep = partial(_hibernates, view.assignments)
                yield from filterfalse(is_asleep, self._jobs_of(workload, held))
            elif runs:  # else it runs in another region: its jobs here end, as if it were deleted
                yield from self._jobs_of(workload, held)

    def found(self, held: Mapping[str, Collection[str]]) -> Iterator[tuple[str, TopicPresence]]:
        """The states of workloads' main topics that have, or had, jobs. `held`: see `jobs`."""
        assigned = self._control.view.assignments
        for key in list(self._control.view.workloads):
            workload = self.workload(key)
            prefix = "" if workload is None else _prefix(key, workload.metadata.topic)
            if workload is None or not was_held(assigned[job] for job in held.get(prefix, ())):
                continue
            state, since_s = self._states.get(key, ("unknown", 0.0))
            if state == "absent" and time.monotonic() - since_s < TOPIC_GONE_AFTER_S:
                state = "unknown"  # a broker that starts may not know it yet
            metadata = workload.metadata
            topic = ExpectedTopic("workload", key, metadata.cluster, metadata.topic)
            yield prefix, TopicPresence(topic, state)

    def _set_state(self, key: str, state: TopicExistence) -> None:
        if self._states.get(key, ("unknown", 0.0))[0] != state:
            self._states[key] = state, time.monotonic()

    def _jobs_of(self, workload: Workload, held: Mapping[str, Collection[str]]) -> Iterator[str]:
        key, cluster, topics = workload.key, workload.metadata.cluster, [*workload.retry_topics()]
        if workload.spec.start == "earliest" or self._control.view.start_parts_of(key):
            topics.insert(0, workload.metadata.topic)
        else:
            yield from held.get(_prefix(key, workload.metadata.topic), ())  # until the ends are recorded
        for topic in topics:
            prefix, count = _prefix(key, topic), self._partitions.get((cluster, topic))
            if count is None:
                yield from held.get(prefix, ())  # never read (the cluster is unreachable): assigned jobs stay
            else:
                yield from (f"{prefix}:{partition}" for partition in range(count))
        for topic, partition in self._leftovers.of(key):
            yield f"{_prefix(key, topic)}:{partition}"
        if not self._leftovers.knows(key, self._control.view.workloads[key].etag):
            for topic in candidates(workload):
                yield from held.get(_prefix(key, topic), ())

    def _owned(self, held: Mapping[str, Collection[str]]) -> set[str]:
        """The workloads with a job that has an owner."""
        return {
            name_of(prefix)
            for prefix, jobs in held.items()
            if prefix.startswith(DISPATCH_JOBS) and any(self._control.view.owner(job) for job in jobs)
        }

    async def _refresh_all(self, owned: set[str]) -> None:
        """Reads old topics in parallel (rule 2). `owned`: the workloads with an owned job."""
        now_s = time.monotonic()
        self._reading = {key: task for key, task in self._reading.items() if not task.done()}
        old = []
        for key, put in list(self._control.view.workloads.items()):
            workload = self.workload(key)
            if workload is not None and key not in self._reading and self._is_old(workload, put.etag, now_s):
                old.append((workload, put.etag))
        claimed = self._claimed() if old else set()
        awaited: dict[asyncio.Task[None], str] = {}
        for workload, etag in old:
            name = workload.metadata.cluster
            task = asyncio.create_task(self._refresh(workload, etag, claimed, workload.key in owned))
            self._reading[workload.key] = task
            if name not in self._late:
                awaited[task] = name
        if awaited:
            _, late = await asyncio.wait(awaited, timeout=REFRESH_TIMEOUT_S)
            self._late.update(awaited[task] for task in late)

    def _is_old(self, workload: Workload, etag: str, now_s: float) -> bool:
        key = workload.key
        if now_s - self._read_at_s.get(key, float("-inf")) >= REFRESH_INTERVAL_S:
            return True
        return self._prepared.get(key, ("", 0))[0] != etag or self._lacks_beginning(key, workload)

    async def _refresh(
        self, workload: Workload, etag: str, claimed: set[tuple[str, str]], is_owned: bool
    ) -> None:
        key, name, began_s = workload.key, workload.metadata.cluster, time.monotonic()
        self._read_at_s[key] = began_s
        if name not in self._clusters.specs:
            why = f"cluster {name!r} is not in this worker's configuration"
            self._report(key, why, "add it to clusters in switchyard.yaml")
            return
        try:
            await self._read(workload, etag, claimed, is_owned)
        except _MayNotDescribe as error:
            topic, spec = error.topic, self._clusters.specs[name]
            if topic == workload.metadata.topic:
                self._set_state(key, "denied")
            self._report(
                key, lacks(spec, "topic", topic, "Describe"),
                f"{grant(spec, 'topic', topic, 'Describe', 'Read')}; its known jobs continue",
            )  # fmt: skip
        except AUTHORISATION as error:  # to create its topics
            message, _, remedy = str(error.args[0] if error.args else error).partition("; ")
            self._report(key, message, remedy or f"allow {principal(self._clusters.specs[name])} to")
        except Exception as error:  # noqa: BLE001 - a cluster's trouble must not stop the jobs of other clusters
            self._report(key, f"cluster {name} cannot be read: {error}", "its known jobs continue")
        else:
            if time.monotonic() - began_s < REFRESH_TIMEOUT_S:
                self._late.discard(name)

    async def _read(
        self, workload: Workload, etag: str, claimed: set[tuple[str, str]], is_owned: bool
    ) -> None:
        key, name, topic = workload.key, workload.metadata.cluster, workload.metadata.topic
        cluster, began_s = await self._clusters.get(name), time.monotonic()
        own = [topic, *workload.retry_topics()]
        passing = [other for other in candidates(workload) if (name, other) not in claimed]
        dlq = [workload.dlq_topic()] if workload.spec.dlq.enabled else []
        sizes = await _sizes(cluster.client, own, [*passing, *dlq])
        count = sizes.get(topic)
        self._set_state(key, "absent" if count is None else "there")
        if count is None:
            self._report(
                key, f"topic {topic} does not exist in {name}", "create it; the workload then starts"
            )
            return
        if self._lacks_beginning(key, workload):
            await self._record_beginning(key, cluster.client, topic, count)
        lacks = not sizes.keys() >= {*own, *dlq} and began_s >= self._create_again_s.get(key, began_s)
        if self._prepared.get(key) != (etag, count) or lacks:
            self._create_again_s[key] = began_s + CREATE_AGAIN_S
            await self._prepare(cluster.client, workload, count)
            sizes |= await _sizes(cluster.client, own, dlq)
            self._prepared[key] = etag, count
            self._check_again_s.pop(key, None)
        if began_s >= self._check_again_s.get(key, began_s):
            self._wrong[key] = await self._check_settings(cluster.client, workload, sizes.keys())
            self._check_again_s[key] = began_s + CHECK_AGAIN_S
        present = {one: sizes[one] for one in own if one in sizes}
        counted = await self._counted(cluster.client, name, present)
        left = {other: sizes[other] for other in passing if other in sizes}
        wanted = partitions_of((present if workload.spec.hibernate else {}) | left)
        try:
            backlog = await read_backlog(cluster, workload.metadata.group, wanted)
        finally:
            # Set together, and without an await before the hibernation check: no round sees half of it.
            for one, (size, topic_id) in counted.items():
                self._partitions[name, one], self._ids[name, one] = size, topic_id
        if self.workload(key) is not workload:
            return  # it changed meanwhile, and is read again
        now_s = time.monotonic()
        self._leftovers.update(workload, etag, left, backlog, now_s)
        self._report_leftovers(key, workload)
        self.hibernation.evaluate(workload, wanted, backlog, now_s, is_owned)
        self._report_topics(key)

    def _forget_reported(self, key: str, but: str = "") -> None:
        """Ends the incidents of a workload's reads, of which only the last one counts."""
        present = {
            but,
            str(self._refused.get(key)),
            *(problem.message for problem in self._wrong.get(key, [])),
        }
        self._reported = {entry for entry in self._reported if entry[0] != key or entry[1] in present}

    def _report_topics(self, key: str) -> None:
        refused, wrong = self._refused.get(key), self._wrong.get(key, [])
        self._forget_reported(key)
        for problem in wrong:
            self._report(key, problem.message, problem.remedy, kind="topic-settings")
        if refused is not None:
            self._report(key, str(refused), f"{refused.remedy}; {UNTIL_THEN}")
        elif wrong:
            first, *more = wrong
            rest = f"; incidents topic-settings name {len(more)} more of its topics" if more else ""
            self._troubles[key] = f"{first.message}; {first.remedy}{rest}"
        else:
            self._troubles.pop(key, None)

    async def _counted(
        self, client: ClusterClient, name: str, sizes: Mapping[str, int]
    ) -> dict[str, tuple[int, str]]:
        """Topic -> (new count, topic id), for the topics whose count changed.

        A topic loses partitions only when it is recreated. A lagging broker may report fewer, too, so a
        lower count needs another id.
        """
        other = [topic for topic, size in sizes.items() if self._partitions.get((name, topic)) != size]
        ids = await client.topic_ids(other) if other else {}
        counted = {}
        for topic in other:
            former, topic_id = self._ids.get((name, topic), UNKNOWN_ID), ids.get(topic, UNKNOWN_ID)
            is_recreated = UNKNOWN_ID not in (former, topic_id) and former != topic_id
            if is_recreated or sizes[topic] > self._partitions.get((name, topic), 0):
                counted[topic] = sizes[topic], topic_id
        return counted

    async def _prepare(self, client: ClusterClient, workload: Workload, partitions: int) -> None:
        """Creates a workload's missing topics, and enlarges the existing ones."""
        try:
            created = await create_topics(client, workload, partitions)
        except TopicRefused as error:
            self._refused[workload.key] = error
        else:
            self._refused.pop(workload.key, None)
            if created:
                log.info("created topics", workload=workload.key, topics=created)
        try:
            await grow_topics(client, workload, partitions)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as error:
            self._report_incident(
                "topic-settings",
                workload.key,
                f"its retry topics and DLQ in {client.name} may lack partitions: {error!r}",
                f"give each {min(partitions, MAX_PARTITIONS)} partitions, or allow Switchyard's principal to "
                "alter its own topics",
            )

    async def _check_settings(
        self, client: ClusterClient, workload: Workload, existing: Collection[str]
    ) -> list[SettingsProblem]:
        """The problems of its `existing` topics. After a failed read the known ones stay."""
        key = workload.key
        try:
            wrong, unread = await check_settings(client, workload, existing)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as failure:
            log.info("the leader could not read the settings of topics", workload=key, error=repr(failure))
            return self._wrong.get(key, [])
        self._reported_unread = {
            entry for entry in self._reported_unread if entry[0] != key or entry[1] in unread
        }
        for topic, error in sorted(unread.items()):
            entry = key, topic, workload.etag()
            if entry in self._reported_unread or not isinstance(error, AUTHORISATION):
                continue
            self._reported_unread.add(entry)
            altered = ["AlterConfigs"] if topic in workload.retry_topics() else []
            self._report_incident(
                "topic-settings",
                key,
                f"the leader cannot check the settings of topic {topic} in {client.name}: {error}",
                grant(client.spec, "topic", topic, "DescribeConfigs", *altered),
                until_deposed(self._control, partial(self._is_read, entry)),
            )
        return [*wrong, *(one for one in self._wrong.get(key, []) if one.topic in unread)]

    def _is_read(self, entry: tuple[str, str, str]) -> bool:
        """Whether the settings of a topic that could not be read were read, or are no longer needed."""
        return entry not in self._reported_unread

    def _claimed(self) -> set[tuple[str, str]]:
        """(cluster, topic) of all topics that workloads read: they are no leftovers."""
        workloads = [self.workload(key) for key in list(self._control.view.workloads)]
        return {
            (workload.metadata.cluster, topic)
            for workload in workloads
            if workload is not None
            for topic in (workload.metadata.topic, *workload.retry_topics())
        }

    def _lacks_beginning(self, key: str, workload: Workload) -> bool:
        """Whether the ends for `start: latest` are still to be recorded."""
        view = self._control.view
        return workload.spec.start == "latest" and key in view.workloads and not view.start_parts_of(key)

    async def _record_beginning(self, key: str, client: ClusterClient, topic: str, count: int) -> None:
        put = self._control.view.workloads[key]
        topic_id = (await client.topic_ids([topic])).get(topic, "")
        at = [(topic, partition) for partition in range(count)]
        ends = await client.committed_ends(at)
        if len(ends) < count:
            raise LookupError(f"{count - len(ends)} partitions of {topic} have no leader that answers")
        await self._control.append(
            StartRecorded(
                at_ms=now_ms(), key=key, deployment=put.deployment, nonce=uuid4().hex,
                ends=[ends[one] for one in at], topic_id=topic_id,
            )
        )  # fmt: skip

    def _report_leftovers(self, key: str, workload: Workload) -> None:
        left = {topic for topic, _ in self._leftovers.of(key) if is_left(workload, topic)}
        self._reported_left = {entry for entry in self._reported_left if entry[0] != key or entry[1] in left}
        for topic in sorted(left):
            if (key, topic) not in self._reported_left:
                self._reported_left.add((key, topic))
                self._report_incident(
                    "retry-tier-removed",
                    key,
                    f"messages still wait in {topic}, whose retry tier is no longer defined",
                    "nothing to do: its jobs deliver them without delay, and end when it is empty",
                )

    def _report(self, key: str, message: str, remedy: str, *, kind: str = "workload-trouble") -> None:
        self._troubles[key] = f"{message}; {remedy}"
        if (key, message) not in self._reported:
            self._forget_reported(key, message)
            self._reported.add((key, message))  # until the topics are read without this trouble
            is_over = until_deposed(self._control, lambda: (key, message) not in self._reported)
            self._report_incident(kind, key, message, remedy, is_over)


def _hibernates(assignments: Mapping[str, Assignment], job: str) -> bool:
    return job in assignments and is_hibernated(assignments[job])


def _prefix(key: str, topic: str) -> str:
    return f"{DISPATCH_JOBS}{key}:{topic}"


async def _sizes(client: ClusterClient, own: Sequence[str], others: Sequence[str] = ()) -> dict[str, int]:
    """The partition counts of existing topics, in one request. Raises _MayNotDescribe, ClusterUnreachable,
    KafkaError: for `own` topics."""
    found: dict[str, int] = {}
    for code, topic, _, partitions in (await client.metadata([*own, *others])).topics:
        if code and code not in TOPIC_UNKNOWN and not partitions and topic in own:
            raise _MayNotDescribe(topic) if code == NOT_AUTHORISED else for_code(code)(topic)
        if partitions:
            found[topic] = len(partitions)
    return found
