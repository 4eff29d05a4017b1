"""Reports topics that vanished while a route, an audit plan or a workload still names them, and counts
them in a metric.

    control log: the topic has jobs -> its definition still names it -> the cluster does not list it: vanished

Rules
1. A topic that no definition names any more was removed by an operator, which is no incident.
2. The trouble ends when the topic is there again (another incident), or when no definition names it any more.
3. A cluster's list omits deleted topics and those that may not be described; a request by name tells
   which. Jobs of a topic that may not be described stay, and resume by themselves.
4. While a cluster cannot be read, its topics keep their last known state.
5. A job that ends with its topic says so in the control log (`ENDED`), so that the next leader knows, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from app.controllog.events import Assignment
from app.kafka.client.permissions import grant, lacks
from app.kafka.data_clusters import DataClusters
from app.kernel.incidents import ReportIncident
from app.placement.model.round import GONE, is_gone
from app.worker.jobs.topic_inventory import TopicExistence

MAX_REPORTED = 20  # incidents of a definition at once: a cluster may lose thousands of topics
ENDED = f"{GONE}: its topic vanished"
REMEDIES = {
    "route": "create it again, or end its copy: switchyard route drop-topic {name} {topic} --execute",
    "audit plan": "create it again, or add it to exclude of the plan",
    "workload": "create it again, or delete the workload; messages that were not delivered are lost",
}
RESTART_HINTS = {
    "route": "the route copies it again, a recreated topic from its first record",
    "audit plan": "the plan counts it again",
    "workload": "the workload delivers it again, a recreated topic from its first message",
}


class ExpectedTopic(NamedTuple):
    """A topic of a cluster, and the definition that names it; `kind` is a key of `REMEDIES`."""

    kind: str
    name: str
    cluster: str
    topic: str


class TopicPresence(NamedTuple):
    """The state of an expected topic."""

    topic: ExpectedTopic
    state: TopicExistence


def was_held(assignments: Iterable[Assignment]) -> bool:
    """Whether a topic has jobs, or had jobs that ended because it vanished."""
    return any(not is_gone(held) or held.reason.startswith(ENDED) for held in assignments)


class VanishedTopics:
    """`of` has the topics that are now "absent" or "denied", by job name without the partition."""

    def __init__(self, clusters: DataClusters, report_incident: ReportIncident) -> None:
        self.of: dict[str, TopicPresence] = {}
        self._clusters = clusters
        self._report_incident = report_incident

    def update(self, found: Iterable[tuple[str, TopicPresence]], begins: bool = False) -> None:
        """Takes the states of all topics that have, or had, jobs and that a definition names. `begins`: this
        worker has just become the leader, so it also reports what it knows from an earlier leadership."""
        before, self.of = self.of, {}
        news: dict[tuple[str, str], list[tuple[str, TopicPresence]]] = {}
        for prefix, now in found:
            known = before.get(prefix)
            if now.state == "unknown" and known is not None:
                self.of[prefix] = known
            elif now.state in {"absent", "denied"}:
                self.of[prefix] = now
            former = known.state if known is not None else "there"
            if now.state not in {"unknown", former} or (begins and now.state in {"absent", "denied"}):
                news.setdefault(now.topic[:2], []).append((prefix, now))
        for (kind, name), topics in news.items():
            for prefix, (topic, state) in topics[:MAX_REPORTED]:
                self._report(prefix, topic, state)
            if len(topics) > MAX_REPORTED:
                self._report_incident(
                    "topic-vanished", name,
                    f"{len(topics) - MAX_REPORTED} more topics of {kind} {name} vanished or returned as well",
                    "the metric switchyard_topic_vanished names each of them",
                )  # fmt: skip

    def why_gone(self, job: str) -> str:
        """The reason to record when a job ends: its topic vanished, or just that it is gone."""
        return ENDED if job.rpartition(":")[0] in self.of else GONE

    def _report(self, prefix: str, topic: ExpectedTopic, state: TopicExistence) -> None:
        kind, name, cluster, what = topic
        if state == "there":
            message = f"topic {what} in {cluster}, which {kind} {name} names, is there again"
            self._report_incident("topic-returned", name, message, RESTART_HINTS[kind])
            return
        message = f"topic {what} in {cluster}, which {kind} {name} names, was deleted or is not listed now"
        remedy = REMEDIES[kind].format(name=name, topic=what)
        if state == "denied":
            spec = self._clusters.specs[cluster]
            message = (
                f"topic {what} in {cluster}, which {kind} {name} names, may not be described: "
                f"{lacks(spec, 'topic', what, 'Describe')}"
            )
            remedy = grant(spec, "topic", what, "Describe", "Read")
        self._report_incident(
            "topic-vanished", name, message, remedy,
            lambda: (now := self.of.get(prefix)) is None or now.state != state,
        )  # fmt: skip
