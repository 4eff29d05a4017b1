"""Reads the roles and pulses of other regions, in the copies of their control logs.

    west-regional                      east-regional
    switchyard-west-control --route--> switchyard-west-control --Bridge--> what the leader writes into
                                                                           switchyard-east-control

Rules
1. The leader reads each copy from its beginning. It needs nothing from its predecessor: the state is a
   maximum (`app.controllog.roles`), and the leader writes only what advances it.
2. A record that is no event is skipped, and reported once a region. So is a role that is too long, or of an
   impossible epoch, or beyond `MAX_WORKLOADS`.
3. Jobs that run do not need this. When a copy is away or late, this region learns later.
4. The last pulse of a copy counts, whatever its time, because the next leader's clock may be behind. Its age
   is measured from its arrival, by this worker's clock. A pulse that was in the copy when it was first read
   did not arrive, so its own time counts. If that is less than `UNHEARD_S` ago, it is unknown whether its
   region lives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog import codec
from app.controllog.events import RegionPulse, RoleEvent, RolePut, RoleReleased
from app.controllog.roles import Roles
from app.controllog.topics import ControlTopics
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.topic_tail import TAIL_STOP_TIMEOUT_S, TopicTail, bounded
from app.kafka.records.record import PlacedRecord
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident

log = structlog.get_logger(__name__)

BRIDGE_POLL_INTERVAL_S = 1.0
PREFIXES = (b"role/", b"role-released/", b"pulse/")  # the record keys that matter here
MAX_KEY_CHARS = 500  # group, slash, topic
MAX_WORKLOADS = 100_000
MAX_REGION_CHARS = 200
UNHEARD_S = 15.0  # a region that is silent for longer counts as away


class RegionBridge(Service):
    """Reads other regions' control logs while this worker leads.

    Args:
        wanted: The other regions to read; empty while this worker does not lead.
        clock: Monotonic seconds.

    Attributes:
        roles: The maximum of all roles that were read.
        pulses: Region -> the last pulse in its copy.
    """

    def __init__(
        self,
        client: ClusterClient,
        kafka_options: ClientOptions,
        wanted: Callable[[], Collection[str]],
        on_news: Callable[[], None],
        report_incident: ReportIncident,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.roles = Roles()
        self.pulses: dict[str, RegionPulse] = {}
        self._arrived_s: dict[str, float] = {}  # region -> when its last pulse arrived
        self._client = client
        self._options = kafka_options
        self._wanted = wanted
        self._on_news = on_news
        self._report_incident = report_incident
        self._clock = clock
        self._tails: dict[str, TopicTail] = {}
        self._keys: set[str] = set()
        self._reported: set[str] = set()

    def has_answered(self, region: str, own: str, name: str) -> bool:
        """Whether `region` has heard a pulse that this region's leader wrote under `name`.

        Then all that it knew when the leader took that name has arrived here. No clock counts.
        """
        pulse = self.pulses.get(region)
        return pulse is not None and pulse.answers.get(own) == name

    def age_s(self, region: str) -> float | None:
        """How long ago the region's last pulse arrived; None: none did, or it is unknown (rule 4)."""
        if region in self._arrived_s:
            return self._clock() - self._arrived_s[region]
        pulse = self.pulses.get(region)
        age_s = 0.0 if pulse is None else (now_ms() - pulse.at_ms) / 1000
        return age_s if age_s > UNHEARD_S else None

    @Service.task
    async def _poll_for_ever(self) -> None:
        while not self.should_stop:
            try:
                await self._poll()
            except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
                log.warning(
                    "cannot look for copies of other regions' control logs, retrying", error=repr(error)
                )
            except Exception:
                log.exception("reading other regions' control logs failed, retrying")
            await self.sleep(BRIDGE_POLL_INTERVAL_S)

    async def _poll(self) -> None:
        wanted = set(self._wanted())
        for region in self._tails.keys() - wanted:
            await bounded(
                self._tails.pop(region).stop(), TAIL_STOP_TIMEOUT_S, f"reader of {region}'s control log"
            )
        if not wanted:
            # When this worker leads again, what it knows now may be old.
            self.roles, self.pulses, self._keys, self._reported = Roles(), {}, set(), set()
            self._arrived_s = {}
        for region in sorted(wanted - self._tails.keys()):
            topic = ControlTopics(region).control.name
            if await self._client.partitions(topic) is not None:
                tail = TopicTail(topic, self._options, partial(self._read, region), from_start=True)
                self._tails[region] = tail
                await tail.start()

    async def on_stop(self) -> None:
        tails, self._tails = self._tails, {}
        await asyncio.gather(
            *(bounded(tail.stop(), TAIL_STOP_TIMEOUT_S, "reader of a region") for tail in tails.values())
        )

    def _read(self, region: str, records: Sequence[PlacedRecord]) -> None:
        tail = self._tails.get(region)
        self.accept(region, records, old=tail is not None and not tail.caught_up.is_set())

    def accept(self, region: str, records: Sequence[PlacedRecord], *, old: bool = False) -> None:
        """Reads records of the copy of `region`'s control log. Never raises.

        `old`: the records were there when the copy was first read.
        """
        news = False
        for record in records:
            if record.value is None or not (record.key or b"").startswith(PREFIXES):
                continue
            try:
                event = codec.control_event(record.value)
            except codec.BadEvent as error:
                self._report(region, f"offset {record.offset}: {error}")
                continue
            if isinstance(event, RegionPulse):
                self._pulse(region, event, old=old)  # no round of the leader waits for a pulse
            elif isinstance(event, RolePut | RoleReleased):
                news |= self._role(region, event)
        if news:
            self._on_news()

    def _pulse(self, region: str, event: RegionPulse, *, old: bool) -> None:
        if event.region == region:
            self.pulses[region] = event
            if not old:
                self._arrived_s[region] = self._clock()

    def _role(self, region: str, event: RoleEvent) -> bool:
        is_too_long = len(event.key) > MAX_KEY_CHARS or len(event.region) > MAX_REGION_CHARS
        if is_too_long or self.roles.is_jump(event):
            self._report(region, f"a role of {event.key[:100]!r} under epoch {event.epoch} is impossible")
            return False
        if event.key not in self._keys:
            if len(self._keys) >= MAX_WORKLOADS:
                self._report(region, f"it has roles of more than {MAX_WORKLOADS} workloads")
                return False
            self._keys.add(event.key)
        return self.roles.put(event) if isinstance(event, RolePut) else self.roles.release(event)

    def _report(self, region: str, what: str) -> None:
        if region not in self._reported:
            self._reported.add(region)
            self._report_incident(
                "bridge-trouble", region, f"in the copy of region {region}'s control log: {what}",
                "the worker skips it; find out what else writes to that topic",
            )  # fmt: skip
