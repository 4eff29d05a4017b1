"""The workers as bins: each one's level in three dimensions, and which one gets the next job.

Rules
1. A worker's level is that of its fullest dimension; 1.0 is its whole capacity.
2. A job goes to the worker with the lowest level that stays at or below the fill mark with it (worst fit).
   So load spreads, and an empty worker gets the next jobs. Ties go to the worker with fewer jobs, then by
   name.
3. A hot partition avoids workers with another hot one of its topic, if a third worker has room.
4. Without room, the job goes where the level ends lowest, among the `MIN_CANDIDATES` emptiest workers.

A heap gives the emptiest worker first. When a level changes, its entry stays and is stale, so a job costs
a few heap operations whatever the number of workers. A search without success remembers the most room of
any worker in each dimension; a larger job does not search again.

Invariant: after `open`, every worker has an entry that is not stale.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from app.kernel.load import Load, Vector, vector

DIMENSIONS = ("cpu", "memory", "network")
MIN_CANDIDATES = 4  # when no worker has room
ROUNDING = 1e-9  # more than equal sums of floats differ by
NONE: Vector = (0.0, 0.0, 0.0)
UNLIMITED: Vector = (float("inf"), float("inf"), float("inf"))


class WorkerSlot:
    """A worker's capacity and load. `add` and `remove` leave `level` to `measure`."""

    __slots__ = ("capacity", "count", "group", "hot", "leaving", "level", "name", "used")

    def __init__(self, name: str, capacity: Load, group: str = "") -> None:
        self.name = name
        self.group = group
        self.capacity = vector(capacity)
        self.used = NONE
        self.count = 0
        self.leaving = 0  # its jobs whose release was requested
        self.hot: set[str] = set()  # topics with a hot partition on it
        self.level = 0.0

    def add(self, size: Vector) -> None:
        """Adds a job of this size."""
        used = self.used
        self.used = (used[0] + size[0], used[1] + size[1], used[2] + size[2])
        self.count += 1

    def remove(self, size: Vector) -> None:
        """Removes a job of this size."""
        used = self.used
        self.used = (used[0] - size[0], used[1] - size[1], used[2] - size[2])
        self.count -= 1

    def measure(self) -> None:
        """Updates the level."""
        self.level = self.level_with(NONE)

    def level_with(self, size: Vector) -> float:
        """The level with another job of this size."""
        used, capacity = self.used, self.capacity
        cpu = (used[0] + size[0]) / capacity[0]
        memory = (used[1] + size[1]) / capacity[1]
        network = (used[2] + size[2]) / capacity[2]
        fullest = cpu if cpu > memory else memory  # max() takes three times as long
        return network if network > fullest else fullest

    def room(self, mark: float) -> Vector:
        """The size that fits until a dimension reaches `mark`; negative above it."""
        used, capacity = self.used, self.capacity
        return (
            capacity[0] * mark - used[0],
            capacity[1] * mark - used[1],
            capacity[2] * mark - used[2],
        )

    def describe(self) -> str:
        """For people: "w-3 is at 41 % of its cpu"."""
        used, capacity, level = self.used, self.capacity, self.level
        cpu, memory, network = DIMENSIONS
        if used[0] / capacity[0] >= level:
            fullest = cpu
        else:
            fullest = memory if used[1] / capacity[1] >= level else network
        return f"{self.name} is at {percent(level)} of its {fullest}"


class WorkerBins:
    """The workers of an isolation group that may get jobs."""

    __slots__ = ("_fill", "_heap", "_most", "slots")

    def __init__(self, fill: float) -> None:
        self.slots: dict[str, WorkerSlot] = {}
        self._fill = fill
        self._heap: list[tuple[float, int, str]] = []
        self._most = UNLIMITED

    def open(self) -> None:
        """Ends the setup: from here on `choose` and `put` keep the order."""
        for slot in self.slots.values():
            slot.measure()
        self._heap = [(slot.level, slot.count, slot.name) for slot in self.slots.values()]
        heapq.heapify(self._heap)

    @property
    def lowest(self) -> float:
        """The level of the emptiest worker."""
        heap, slots = self._heap, self.slots
        while (slot := slots[heap[0][2]]).level != heap[0][0] or slot.count != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][0]

    def give(self, size: Vector, hot: str = "") -> tuple[WorkerSlot | None, bool]:
        """`choose` and `put` in one: the worker that gets the job, and whether it had room. A fast path,
        because a first placement calls it a hundred thousand times and nearly always gets the emptiest
        worker."""
        heap = self._heap
        if not hot and heap:
            level, count, name = heap[0]
            slot = self.slots[name]
            if slot.level == level and slot.count == count:
                after = slot.level_with(size)
                if after <= self._fill:
                    slot.level = after
                    slot.add(size)
                    heapq.heapreplace(heap, (after, count + 1, name))
                    return slot, True
        chosen, room = self.choose(size, hot)
        if chosen is not None:
            self.put(chosen, size, hot)
        return chosen, room

    def choose(
        self, size: Vector, hot: str = "", but: WorkerSlot | None = None
    ) -> tuple[WorkerSlot | None, bool]:
        """The worker for a job of this size, and whether it has room (rules 2 to 4).

        Args:
            hot: The job's topic when the job is one of its hot partitions.
            but: The worker that loses the job; it is not a candidate.
        """
        most = self._most
        if size[0] > most[0] or size[1] > most[1] or size[2] > most[2]:
            return self._least(size, but), False
        heap, slots, fill = self._heap, self.slots, self._fill
        passed: list[tuple[float, int, str]] = []
        second: WorkerSlot | None = None
        found: WorkerSlot | None = None
        while heap:
            level, count, name = heap[0]
            slot = slots[name]
            if slot.level != level or slot.count != count:
                heapq.heappop(heap)
                continue
            if level >= fill:
                break  # all others are fuller
            if slot is not but and slot.level_with(size) <= fill:
                if not hot or hot not in slot.hot:
                    found = slot
                    break
                second = second or slot
            passed.append(heapq.heappop(heap))
        if found is None and second is None and (but is None or but.level >= fill):
            self._most = NONE
            for _, _, name in passed:
                self._has_room(slots[name])
        for entry in passed:
            heapq.heappush(heap, entry)
        if found or second:
            return found or second, True
        return self._least(size, but), False

    def put(self, slot: WorkerSlot, size: Vector, hot: str = "") -> None:
        """Gives `slot` a job."""
        slot.level = slot.level_with(size)
        slot.add(size)
        if hot:
            slot.hot.add(hot)
        entry = (slot.level, slot.count, slot.name)
        if self._heap and self._heap[0][2] == slot.name:
            heapq.heapreplace(self._heap, entry)
        else:
            heapq.heappush(self._heap, entry)

    def remove_job(self, slot: WorkerSlot, size: Vector) -> None:
        """Takes a job from `slot`."""
        slot.remove(size)
        slot.measure()
        self._has_room(slot)
        heapq.heappush(self._heap, (slot.level, slot.count, slot.name))

    def _has_room(self, slot: WorkerSlot) -> None:
        room, most = slot.room(self._fill + ROUNDING), self._most
        self._most = (max(room[0], most[0]), max(room[1], most[1]), max(room[2], most[2]))

    def _least(self, size: Vector, but: WorkerSlot | None) -> WorkerSlot | None:
        heap, passed = self._heap, list[tuple[float, int, str]]()
        best: WorkerSlot | None = None
        # One more without `but`, so that the target of a planned move is among them again.
        best_level, seen, wanted = float("inf"), 0, MIN_CANDIDATES if but is not None else MIN_CANDIDATES + 1
        while heap and seen < wanted:
            entry = heapq.heappop(heap)
            slot = self.slots[entry[2]]
            if slot.level != entry[0] or slot.count != entry[1]:
                continue
            if passed and passed[-1] == entry:
                continue  # an older entry with the same level: one is enough
            passed.append(entry)
            if slot is but:
                continue
            seen += 1
            level = slot.level_with(size)
            if level < best_level:
                best, best_level = slot, level
        for entry in passed:
            heapq.heappush(heap, entry)
        return best


def mean_of(vectors: Sequence[Vector]) -> Vector:
    """The mean in each dimension of at least one vector."""
    cpu, memory, network = (sum(one[d] for one in vectors) / len(vectors) for d in range(3))
    return cpu, memory, network


def percent(share: float) -> str:
    """A share for people: "41 %", and "0.4 %" where it would read 0."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share <= 0 else f"{100 * share:.1g} %"
