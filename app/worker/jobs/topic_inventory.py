"""What is known of the topics of one cluster that routes read or write: sizes and settings, as last seen.

Rules
1. What grew is believed at once. What became smaller, or is not there, is believed once it has been so for
   `TOPIC_GONE_AFTER_S`: a broker that begins, or lags behind the others, may answer with less than there is.
2. Settings are read anew every `SETTINGS_INTERVAL_S`, those of a topic just found at once,
   `TOPICS_PER_REQUEST` topics in a look. What may not be read is not known, which is not the same as a
   default.
3. A list of all topics leaves out those that may not be described, as if they were not there. Those that are
   expected are asked for by name, which tells the two apart.
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
TOPICS_PER_REQUEST = 400  # an answer takes a tenth of a millisecond for each

TopicExistence = Literal["there", "absent", "denied", "unknown"]  # of a topic that was expected

AUTHORISATION = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)
NEVER_S = float("-inf")


class ClusterTopics:
    """See the module.

    Attributes:
        sizes: partitions of every topic there is, as far as it was asked for.
        names: changes when a topic comes or goes.
        version: changes with whatever is known.
        listed_at_s, read_at_s: when its sizes were last read, and anything to the end, in monotonic seconds.
        took_s: how long it took to list it.
        stale: it was changed by us since.
        denied: topics that may not be described; of those that were asked for by name, or expected.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.names = 0
        self.version = 0
        self.listed_at_s = self.read_at_s = NEVER_S
        self.took_s = 0.0
        self.stale = True
        self.denied: frozenset[str] = frozenset()
        self._missing_since_s: dict[str, float] = {}  # of those expected
        self._asked: frozenset[str] | None = frozenset()
        self._less_since_s: dict[str, float] = {}
        self._states: dict[str, TopicState] = {}
        self._described_s: dict[str, float] = {}
        self._unread: dict[str, str] = {}

    @property
    def listed(self) -> bool:
        """Whether it ever was."""
        return self.listed_at_s != NEVER_S

    def state(self, topic: str) -> TopicState | None:
        """The topic as it is; None: it is not there, or not described yet. The same object while nothing
        changed. One whose settings may not be read has none at all."""
        return self._states.get(topic)

    @property
    def troubles(self) -> Mapping[str, str]:
        """Topic -> why its settings cannot be read."""
        return self._unread

    def knows(self, *topics: str) -> bool:
        """Whether it is known which of `topics` are there."""
        return self._asked is None or all(topic in self.sizes or topic in self._asked for topic in topics)

    def is_gone(self, topic: str) -> bool:
        """Whether a topic that was expected, or was there, is not there any more (rule 1)."""
        since_s = self._missing_since_s.get(topic)
        return (
            topic not in self.sizes
            and since_s is not None
            and self.listed_at_s - since_s >= TOPIC_GONE_AFTER_S
        )

    def stands(self, topic: str) -> TopicExistence:
        """How things stand with a topic that was expected."""
        if not self.listed:
            return "unknown"
        if topic in self.denied:
            return "denied"
        if topic in self.sizes:
            return "there"
        return "absent" if self.is_gone(topic) else "unknown"

    def lacks(self, topics: Set[str]) -> bool:
        """Whether any of `topics` is there and was not described."""
        return not self.sizes.keys().isdisjoint(topics - self._states.keys())

    def forget(self, topics: Iterable[str]) -> None:
        """They were changed: they are read again at once."""
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
        """Reads the sizes of `topics` (None: of all there are), with `relist`, then the settings of those
        `described`. `expected` are topics that should be there, as they have jobs.

        Raises:
            ClusterUnreachable, KafkaError, NotImplementedError: it cannot be read now.
        """
        self.stale = False
        if relist:
            await self._list(client, topics, expected, now_s)
        wanted = {topic for topic in described() if topic in self.sizes}
        at_s = {topic: self._described_s.get(topic, NEVER_S) for topic in wanted}
        old = sorted(
            (topic for topic in wanted if now_s - at_s[topic] >= SETTINGS_INTERVAL_S), key=at_s.__getitem__
        )
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
        asked = None if topics is None else frozenset(topics)
        self.version += asked != self._asked
        self._asked, self.listed_at_s = asked, now_s

    def update_sizes(
        self,
        sizes: Mapping[str, int],
        now_s: float,
        unsure: Collection[str] = (),
        expected: Collection[str] = (),
    ) -> None:
        """Takes in what was read; of `unsure` topics it is not known how large they are."""
        self.grown(sizes)
        before = self._missing_since_s
        self._missing_since_s = {
            topic: before.get(topic, now_s)
            for topic in expected
            if topic not in self.sizes and topic not in unsure
        }
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
        """These have been made, or made larger: nobody has to see that first."""
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
        """Takes in settings, or why they cannot be read."""
        for topic, told in found.items():
            if topic not in self.sizes:
                continue
            if isinstance(told, KafkaError) and not isinstance(told, AUTHORISATION):
                continue  # it may be in the making: it is asked for again at once
            self._described_s[topic] = now_s
            self._unread.pop(topic, None)
            if isinstance(told, KafkaError):
                self._unread[topic] = str(told)
                state = TopicState(self.sizes[topic])
            else:
                state = TopicState(self.sizes[topic], told.config, told.own)
            if state != self._states.get(topic):
                self._states[topic] = state
                self.version += 1
