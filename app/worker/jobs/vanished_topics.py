"""Topics that vanished from under a route, an audit plan or a workload: each is an incident, and a metric.

    control log: jobs of a topic -> its definition still means it -> the cluster does not show it: vanished

Rules
1. A topic that a definition no longer means was removed by an operator: that is no incident.
2. It is over when the topic is there again (an incident, too), or no definition means it any more.
3. A cluster's list lacks what was deleted, and what may not be described. Asked by the topic's name it says
   which. Jobs of a topic that may not be described stay, and go on by themselves.
4. While a cluster cannot be read, what was known of its topics stays.
5. Jobs that end with their topic say so in the control log (`ENDED`), so that the next leader knows, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from app.controllog.events import Assignment
from app.kafka.client.permissions import grant, lacks
from app.kafka.data_clusters import DataClusters
from app.placement.model.round import GONE, is_gone
from app.worker.jobs.start_position import ReportIncident
from app.worker.jobs.topic_inventory import TopicExistence

MOST_TOLD = 20  # incidents of a definition at once: a cluster may lose thousands of topics
ENDED = f"{GONE}: its topic vanished"
REMEDIES = {
    "route": "create it again, or take it out: switchyard route drop-topic {name} {topic} --execute",
    "audit plan": "create it again, or add it to exclude of the plan",
    "workload": "create it again, or delete the workload; what was not delivered is lost",
}
RESTART_HINTS = {
    "route": "it is copied again, from its first record on if it is another one",
    "audit plan": "it is counted again",
    "workload": "it is delivered again, from its first message on if it is another one",
}


class ExpectedTopic(NamedTuple):
    """A topic of a cluster, and the definition that means it: `kind` is a key of `REMEDIES`."""

    kind: str
    name: str
    cluster: str
    topic: str


class TopicPresence(NamedTuple):
    """How things stand with a topic."""

    topic: ExpectedTopic
    state: TopicExistence


def was_held(assignments: Iterable[Assignment]) -> bool:
    """Whether a topic has jobs, or had some that ended as it vanished: not those that ended otherwise."""
    return any(not is_gone(held) or held.reason.startswith(ENDED) for held in assignments)


class VanishedTopics:
    """See the module. `of` has those that are so now, by all of their jobs' name but the partition; their
    state is "absent" or "denied"."""

    def __init__(self, clusters: DataClusters, report_incident: ReportIncident) -> None:
        self.of: dict[str, TopicPresence] = {}
        self._clusters = clusters
        self._report_incident = report_incident

    def update(self, found: Iterable[tuple[str, TopicPresence]]) -> None:
        """Takes in how things stand with all topics that have, or had, jobs and are still meant; each by all
        of their jobs' name but the partition."""
        before, self.of = self.of, {}
        news: dict[tuple[str, str], list[TopicPresence]] = {}
        for prefix, now in found:
            known = before.get(prefix)
            if now.state == "unknown" and known is not None:
                self.of[prefix] = known
            elif now.state in {"absent", "denied"}:
                self.of[prefix] = now
            if now.state not in {"unknown", known.state if known else "there"}:
                news.setdefault(now.topic[:2], []).append(now)
        for (kind, name), those in news.items():
            for one in those[:MOST_TOLD]:
                self._report(*one)
            if len(those) > MOST_TOLD:
                self._report_incident(
                    "topic-vanished", name,
                    f"so it is with {len(those) - MOST_TOLD} more topics of {kind} {name}",
                    "the metric switchyard_topic_vanished names each of them",
                )  # fmt: skip

    def why_gone(self, job: str) -> str:
        """Why a job is let go for good, to be written down: that its topic vanished, or nothing more."""
        return ENDED if job.rpartition(":")[0] in self.of else GONE

    def _report(self, topic: ExpectedTopic, state: TopicExistence) -> None:
        kind, name, cluster, what = topic
        if state == "there":
            message = f"topic {what} in {cluster}, which {kind} {name} means, is there again"
            self._report_incident("topic-returned", name, message, RESTART_HINTS[kind])
            return
        message = (
            f"topic {what} in {cluster}, which {kind} {name} means, was deleted or is not shown any more"
        )
        remedy = REMEDIES[kind].format(name=name, topic=what)
        if state == "denied":
            spec = self._clusters.specs[cluster]
            message = (
                f"topic {what} in {cluster}, which {kind} {name} means, may not be described: "
                f"{lacks(spec, 'topic', what, 'Describe')}"
            )
            remedy = grant(spec, "topic", what, "Describe", "Read")
        self._report_incident("topic-vanished", name, message, remedy)
