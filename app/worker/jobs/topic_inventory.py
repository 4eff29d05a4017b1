"""The topics of one cluster that routes and audits use: their sizes and settings, as last read.

Rules
1. A larger size counts at once. A smaller size or a missing topic counts after `TOPIC_GONE_AFTER_S`,
   because a broker that starts, or lags behind, may not know all topics.
2. Settings are read every `SETTINGS_INTERVAL_S`, those of a new topic at once, `TOPICS_PER_REQUEST` topics
   at a time. Settings that may not be read are unknown; they are not the defaults.
3. A list of all topics omits those that may not be described. So the inventory requests expected topics by
   name: the answer then tells a missing topic from a forbidden one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Literal

from aiokafka.errors import ClusterAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from app.kafka.client.cluster import TOPIC_UNKNOWN, ClusterClient
from app.kafka.client.permissions import NOT_AUTHORISED
from app.kafka.client.topic_configs import TopicSettings, describe
from app.replicate.model.destination_topic import SETTINGS, TopicState

TOPIC_GONE_AFTER_S = 10.0
SETTINGS_INTERVAL_S = 30.0
TOPICS_PER_REQUEST = 400  # the answer takes 0.1 ms for each

TopicExistence = Literal["there", "absent", "denied", "unknown"]  # of an expected topic

AUTHORISATION = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)
NEVER_S = float("-inf")


class ClusterTopics:
    """The sizes and settings of one cluster's topics.

    Attributes:
        sizes: Topic -> number of partitions, for the requested topics.
        names: Changes when a topic comes or goes.
        version: Changes with every change.
        listed_at_s, read_at_s: When the sizes were last read, and when everything was; monotonic seconds.
        took_s: How long the last list took.
        stale: Whether this worker has changed topics since.
        denied: The requested or expected topics that may not be described.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.names = 0
        self.version = 0
        self.listed_at_s = self.read_at_s = NEVER_S
        self.took_s = 0.0
        self.stale = True
        self.denied: frozenset[str] = frozenset()
        self._missing_since_s: dict[str, float] = {}  # expected topics
        self._requested: frozenset[str] | None = frozenset()
        self._less_since_s: dict[str, float] = {}
        self._states: dict[str, TopicState] = {}
        self._described_s: dict[str, float] = {}
        self._unread: dict[str, str] = {}

    @property
    def listed(self) -> bool:
        return self.listed_at_s != NEVER_S

    def state(self, topic: str) -> TopicState | None:
        """The topic as described; None: missing or not yet. Settings that may not be read are empty."""
        return self._states.get(topic)

    @property
    def troubles(self) -> Mapping[str, str]:
        """Topic -> why its settings cannot be read."""
        return self._unread

    def knows(self, *topics: str) -> bool:
        known = self._requested
        return known is None or all(topic in self.sizes or topic in known for topic in topics)

    def is_gone(self, topic: str) -> bool:
        """Whether an expected or former topic does not exist any more (rule 1)."""
        since_s = self._missing_since_s.get(topic, float("inf"))
        return topic not in self.sizes and self.listed_at_s - since_s >= TOPIC_GONE_AFTER_S

    def stands(self, topic: str) -> TopicExistence:
        if not self.listed:
            return "unknown"
        if topic in self.denied:
            return "denied"
        if topic in self.sizes:
            return "there"
        return "absent" if self.is_gone(topic) else "unknown"

    def lacks(self, topics: Set[str]) -> bool:
        """Whether any of `topics` exists and is not described."""
        return not self.sizes.keys().isdisjoint(topics - self._states.keys())

    def forget(self, topics: Iterable[str]) -> None:
        """Reads these topics again at once, because they were changed."""
        for topic in topics:
            self._described_s.pop(topic, None)
        self.stale = True

    async def refresh(
        self,
        client: ClusterClient,
        topics: Collection[str] | None,
        described: Callable[[], Collection[str]],
        now_s: float,
        *,
        relist: bool = True,
        expected: Set[str] = frozenset(),
    ) -> None:
        """Reads the sizes of `topics` (None: of all), if `relist`, then the settings of `described()`.

        `expected` are topics that should exist, because they have jobs.

        Raises:
            ClusterUnreachable, KafkaError, NotImplementedError: The cluster cannot be read now.
        """
        self.stale = False
        if relist:
            await self._list(client, topics, expected, now_s)
        wanted = {topic for topic in described() if topic in self.sizes}
        at_s = {topic: self._described_s.get(topic, NEVER_S) for topic in wanted}
        old = [topic for topic in wanted if now_s - at_s[topic] >= SETTINGS_INTERVAL_S]
        old.sort(key=at_s.__getitem__)
        if old:
            self.settings(await describe(client, old[:TOPICS_PER_REQUEST], SETTINGS), now_s)
        for topic in [topic for topic in self._states if topic not in wanted]:
            self._undescribe(topic)
        self.read_at_s = now_s

    async def _list(
        self, client: ClusterClient, topics: Collection[str] | None, expected: Set[str], now_s: float
    ) -> None:
        if topics is None or topics or expected:
            began_s = time.monotonic()
            wanted = None if topics is None else sorted({*topics, *expected})
            found = list((await client.metadata(wanted)).topics)
            if wanted is None and (missing := (self.sizes.keys() | expected) - {entry[1] for entry in found}):
                found += (await client.metadata(sorted(missing))).topics
            sure = {0, *TOPIC_UNKNOWN}
            denied = frozenset(entry[1] for entry in found if entry[0] == NOT_AUTHORISED)
            self.version += denied != self.denied
            self.denied = denied
            self.update_sizes(
                {entry[1]: len(entry[3]) for entry in found if entry[3] or entry[0] in sure},
                now_s,
                unsure={entry[1] for entry in found if entry[0] not in sure},
                expected=expected,
            )
            self.took_s = time.monotonic() - began_s
        requested = None if topics is None else frozenset(topics)
        self.version += requested != self._requested
        self._requested, self.listed_at_s = requested, now_s

    def update_sizes(
        self,
        sizes: Mapping[str, int],
        now_s: float,
        unsure: Collection[str] = (),
        expected: Collection[str] = (),
    ) -> None:
        """Takes the read sizes; those of `unsure` topics are not known."""
        self.grown(sizes)
        before, missing = self._missing_since_s, set(expected) - self.sizes.keys() - set(unsure)
        self._missing_since_s = {topic: before.get(topic, now_s) for topic in missing}
        for topic, known in list(self.sizes.items()):
            count = sizes.get(topic, 0)
            if count >= known or topic in unsure:
                self._less_since_s.pop(topic, None)
            elif now_s - self._less_since_s.setdefault(topic, now_s) >= TOPIC_GONE_AFTER_S:
                self.names += not count
                self._resize(topic, count)
                del self._less_since_s[topic]
                if not count:
                    self._missing_since_s[topic] = NEVER_S

    def grown(self, sizes: Mapping[str, int]) -> None:
        """Takes the sizes of topics that were created or enlarged; no list has to confirm them."""
        for topic, count in sizes.items():
            if count > self.sizes.get(topic, 0):
                self.names += topic not in self.sizes
                self._resize(topic, count)
                self._less_since_s.pop(topic, None)

    def _resize(self, topic: str, count: int) -> None:
        self.version += 1
        if not count:
            del self.sizes[topic]
            self._undescribe(topic)
            return
        self.sizes[topic] = count
        state = self._states.get(topic)
        if state is not None:
            self._states[topic] = TopicState(count, state.config, state.own)

    def _undescribe(self, topic: str) -> None:
        self.version += 1
        self._states.pop(topic, None)
        self._described_s.pop(topic, None)
        self._unread.pop(topic, None)

    def settings(self, found: Mapping[str, TopicSettings | KafkaError], now_s: float) -> None:
        for topic, read in found.items():
            if topic not in self.sizes:
                continue
            if isinstance(read, KafkaError) and not isinstance(read, AUTHORISATION):
                continue  # Kafka may still create the topic: the next round reads it again
            self._described_s[topic] = now_s
            self._unread.pop(topic, None)
            if isinstance(read, KafkaError):
                self._unread[topic] = str(read)
                state = TopicState(self.sizes[topic])
            else:
                state = TopicState(self.sizes[topic], read.config, read.own)
            if state != self._states.get(topic):
                self._states[topic] = state
                self.version += 1
