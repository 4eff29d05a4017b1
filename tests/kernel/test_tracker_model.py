"""The tracker against an obvious model: a dict with the state of every offset."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.kernel import tracker as tracker_module
from app.kernel.ranges import Snapshot
from app.kernel.tracker import OffsetState, Tracker

START = 100
SPAN = 40  # the rules aim at this many offsets, in the window and around it
UNFINISHED = (OffsetState.IN_FLIGHT, OffsetState.CANCELED)

widths = st.integers(0, 12)
aims = st.integers(-5, SPAN)


class TrackerAgainstModel(RuleBasedStateMachine):
    """Every rule changes both in the same way; the invariants compare every query of the tracker."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[int, OffsetState] = {}
        self.end = START
        self.inherited: set[int] = set()
        self.capacity = 20
        self.tracker = Tracker(START, self.capacity)
        self.may_exceed = False  # it fetched beyond its room, or its limit was lowered
        self.seen_versions: dict[int, Snapshot] = {}
        self.last_base = self.last_version = -1

    @initialize(ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=6), lead=aims)
    def take_over(self, ranges: list[tuple[int, int]], lead: int) -> None:
        """The tracker begins with what an earlier owner finished."""
        snapshot = Snapshot(START + lead, tuple((START + at, START + at + size) for at, size in ranges))
        self.tracker = Tracker(START, self.capacity, snapshot)
        self.end = self.tracker.end
        self.inherited = {offset for start, end in snapshot.finished for offset in range(start, end)}
        below = Snapshot(START).merge(snapshot)
        assert self.tracker.base == self.end == below.base

    def tracked(self) -> int:
        """Registered offsets at or above the base that take room."""
        base = self.tracker.base
        return sum(1 for offset in self.model if offset >= base)

    @rule(hole=st.sampled_from([0, 0, 0, 1, 5, 30]), width=widths)
    def fetch(self, hole: int, width: int) -> None:
        """Fetches the next offsets of the log, sometimes after a hole."""
        self.register(self.end + hole, min(width, self.tracker.room), beyond_room=False)

    @rule(width=widths)
    def fetch_whole(self, width: int) -> None:
        """Fetches offsets together, whether or not there is room for them."""
        self.may_exceed |= width > self.tracker.room
        self.register(self.end, width, beyond_room=True)

    @rule(extra=st.integers(0, 15))
    def grant(self, extra: int) -> None:
        self.may_exceed |= extra < self.tracker.extra
        self.tracker.extra = extra

    def register(self, start: int, width: int, *, beyond_room: bool) -> None:
        end = start + width
        deliver = self.tracker.fetched(start, end, beyond_room=beyond_room)
        expected = [offset for offset in range(start, end) if offset not in self.inherited]
        assert [offset for first, last in deliver for offset in range(first, last)] == expected
        self.model.update(dict.fromkeys(expected, OffsetState.IN_FLIGHT))
        self.end = end

    def finish(self, offsets: list[int], state: OffsetState) -> int:
        newly = {offset for offset in offsets if self.model.get(offset) in UNFINISHED}
        self.model.update(dict.fromkeys(newly, state))
        return len(newly)

    @rule(aim=aims)
    def ack(self, aim: int) -> None:
        offset = self.tracker.base + aim
        assert self.tracker.ack(offset) == bool(self.finish([offset], OffsetState.ACKED))

    @rule(aim=aims)
    def nack(self, aim: int) -> None:
        offset = self.tracker.base + aim
        assert self.tracker.nack(offset) == bool(self.finish([offset], OffsetState.NACKED))

    @rule(aim=aims)
    def cancel(self, aim: int) -> None:
        offset = self.tracker.base + aim
        in_flight = self.model.get(offset) is OffsetState.IN_FLIGHT
        assert self.tracker.cancel(offset) == in_flight
        if in_flight:
            self.model[offset] = OffsetState.CANCELED

    @rule(aim=aims, width=widths, nack=st.booleans())
    def finish_range(self, aim: int, width: int, nack: bool) -> None:
        start = self.tracker.base + aim
        end = start + width
        state = OffsetState.NACKED if nack else OffsetState.ACKED
        did = self.tracker.nack_range(start, end) if nack else self.tracker.ack_range(start, end)
        assert did == self.finish(list(range(start, end)), state)

    @rule(wanted=st.lists(aims, max_size=20))
    def ack_many(self, wanted: list[int]) -> None:
        offsets = [self.tracker.base + aim for aim in wanted]
        assert self.tracker.ack_many(offsets) == self.finish(offsets, OffsetState.ACKED)

    @rule(aim=aims, width=widths)
    def skip(self, aim: int, width: int) -> None:
        start = min(self.tracker.base + aim, self.end)
        end = start + width
        assert self.tracker.skip(start, end) == self.finish(list(range(start, end)), OffsetState.GAP)
        self.end = max(self.end, end)

    @rule(lead=aims, width=widths)
    def inherit(self, lead: int, width: int) -> None:
        """More offsets are known to be finished; this changes only offsets that were not fetched yet."""
        start = max(0, self.end + lead)
        new = {offset for offset in range(start, start + width) if offset >= self.end} - self.inherited
        assert self.tracker.inherit([(start, start + width)]) == len(new)
        self.inherited |= new

    @precondition(lambda self: not self.tracker.idle)
    @rule()
    def ack_the_head(self) -> None:
        """Random aims seldom empty the window; this does."""
        base = self.tracker.base
        assert self.tracker.ack(base)
        self.finish([base], OffsetState.ACKED)

    @rule()
    def hand_over(self) -> None:
        """A new owner gets the snapshot, and must deliver exactly the unfinished offsets."""
        snapshot = Snapshot.from_bytes(self.tracker.snapshot().to_bytes())
        heir = Tracker(START, 10_000, snapshot)
        deliver = heir.fetched(heir.end, max(heir.end, self.end))
        got = [offset for first, last in deliver for offset in range(first, last)]
        assert got == [offset for offset, state in sorted(self.model.items()) if state in UNFINISHED]

    @invariant()
    def agrees(self) -> None:
        tracker, unfinished = self.tracker, {o for o, state in self.model.items() if state in UNFINISHED}
        assert tracker.end == self.end
        assert tracker.base == min(unfinished, default=self.end)
        assert tracker.base >= self.last_base
        self.last_base = tracker.base
        assert tracker.idle == (not unfinished)
        assert tracker.oldest_unfinished == min(unfinished, default=None)
        assert tracker.unfinished == len(unfinished)
        in_window = [state for offset, state in self.model.items() if offset >= tracker.base]
        assert tracker.in_flight == in_window.count(OffsetState.IN_FLIGHT)
        assert tracker.canceled == in_window.count(OffsetState.CANCELED)
        assert tracker.acked == in_window.count(OffsetState.ACKED)
        assert tracker.nacked == in_window.count(OffsetState.NACKED)
        assert tracker.limit == self.capacity + tracker.extra
        assert self.may_exceed or len(in_window) <= tracker.limit
        assert tracker.room == max(0, tracker.limit - len(in_window))
        assert tracker.utilisation == min(1.0, len(in_window) / tracker.limit)
        assert tracker.unfinished_share == (len(unfinished) / len(in_window) if in_window else 0.0)
        spans = tracker.unfinished_ranges(1_000)
        assert [offset for start, end in spans for offset in range(start, end)] == sorted(unfinished)
        assert tracker.unfinished_ranges(1) == spans[:1]

    @invariant()
    def agrees_offset_by_offset(self) -> None:
        for offset in range(self.tracker.base - 3, self.end + 70):
            if offset < self.tracker.base:
                expected: OffsetState | None = OffsetState.FINISHED
            elif offset >= self.end:
                expected = OffsetState.FINISHED if offset in self.inherited else None
            else:
                expected = self.model.get(offset, OffsetState.GAP)
            assert self.tracker.state(offset) is expected
            assert self.tracker.is_finished(offset) == (expected not in (*UNFINISHED, None))

    @invariant()
    def snapshots_have_exactly_the_finished_offsets(self) -> None:
        snapshot, version = self.tracker.snapshot(), self.tracker.version
        finished = {o for start, end in snapshot.finished for o in range(start, end)}
        for offset in range(snapshot.base, self.end + 70):
            assert (offset in finished) == self.tracker.is_finished(offset)
        assert all(self.tracker.is_finished(offset) for offset in range(self.tracker.base, snapshot.base))
        assert self.seen_versions.setdefault(version, snapshot) == snapshot
        assert version >= self.last_version
        self.last_version = version


class TrackerThatTrimsAtOnce(TrackerAgainstModel):
    """The same with a trim threshold so low that every example trims."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, tracker_module.TRIM_BYTES = tracker_module.TRIM_BYTES, 2

    def teardown(self) -> None:
        tracker_module.TRIM_BYTES = self.usual


TestTrackerAgainstModel = TrackerAgainstModel.TestCase
TestTrackerThatTrimsAtOnce = TrackerThatTrimsAtOnce.TestCase
