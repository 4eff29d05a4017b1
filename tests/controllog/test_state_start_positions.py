"""Start positions of deployments, as every reader of the control log finds them after any compaction."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from app.controllog.events import (
    AnyControlEvent,
    Moving,
    RoutePut,
    StartRecorded,
    WorkloadPut,
    compaction_key,
    deletion_of,
)
from app.controllog.state import ControlState

KINDS: dict[str, type[WorkloadPut | RoutePut]] = {"g/t": WorkloadPut, "r": RoutePut}

Record = tuple[str, AnyControlEvent | None]  # without an event: a tombstone


def fold(records: Iterable[Record]) -> ControlState:
    state = ControlState()
    for key, event in records:
        if event is None:
            state.dropped(key)
        else:
            state.apply(event)
    return state


def compacted(log: list[Record], clean: int) -> list[Record]:
    """The log after its first `clean` records were compacted."""
    last = {key: at for at, (key, _) in enumerate(log[:clean])}
    return [record for at, record in enumerate(log) if at >= clean or last[record[0]] == at]


class Region:
    """Writes the same events as the API, as leaders (also deposed ones) and as moves."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.state = ControlState()

    def write(self, event: AnyControlEvent) -> None:
        self.log.append((compaction_key(event), event))
        self.state.apply(event)

    def put(self, key: str) -> WorkloadPut | RoutePut:
        made = KINDS[key](at_ms=0, key=key, definition={}, etag=f"etag-{len(self.log)}", actor="me")
        return self.state.replacing(made, f"deployment-{len(self.log)}")

    def step(self, act: str, key: str, behind: int) -> None:
        """Runs one act. The acting leader has not read the last `behind` records yet."""
        current = self.state.workloads.get(key) or self.state.routes.get(key)
        match act:
            case "put":
                self.write(self.put(key))
            case "delete" if current is not None:
                self.write(deletion_of(current)(at_ms=0, key=key, actor="me", expected=current.etag))
            case "move" if isinstance(current, WorkloadPut):
                self.write(Moving(at_ms=0, key=key, move="m", to="west", actor="me"))
                new_start = StartRecorded(
                    at_ms=0, key=key, deployment=current.deployment, ends=[-len(self.log)]
                )
                put = WorkloadPut(at_ms=0, key=key, definition={}, etag=f"moved-{len(self.log)}", actor="me",
                                  move="m", begun=new_start)  # fmt: skip
                self.write(self.state.replacing(put, "never used"))
            case "record" | "record half":
                self.record(key, behind, half=act == "record half")
            case "sweep":
                for stale in fold(self.log[: len(self.log) - behind]).stale:
                    self.log.append((stale, None))
                    self.state.dropped(stale)

    def record(self, key: str, behind: int, *, half: bool) -> None:
        """A leader records a missing start; with `half` it dies before the last part."""
        view = fold(self.log[: len(self.log) - behind])
        put = view.workloads.get(key) or view.routes.get(key)
        if put is None or view.start_parts_of(key):
            return
        parts, nonce = (1 if key in self.state.workloads else 2), f"nonce-{len(self.log)}"
        for part in range(parts - 1 if half else parts):
            self.write(
                StartRecorded(at_ms=0, key=key, deployment=put.deployment, nonce=nonce, ends=[len(self.log)],
                      part=part, parts=parts)
            )  # fmt: skip


ACTS = ["put", "put", "record", "record", "record half", "delete", "move", "sweep"]
steps = st.tuples(st.sampled_from(ACTS), st.sampled_from(sorted(KINDS)), st.integers(0, 4))


@given(st.lists(steps, max_size=30), st.integers(0, 60))
def test_a_fresh_reader_knows_all_starts_after_any_compaction(
    acts: list[tuple[str, str, int]], clean: int
) -> None:
    region = Region()
    for act, key, behind in acts:
        region.step(act, key, min(behind, len(region.log)))
    fresh = fold(compacted(region.log, min(clean, len(region.log))))
    for key in KINDS:
        assert fresh.start_parts_of(key) == region.state.start_parts_of(key)


@given(st.lists(steps, max_size=30))
def test_a_deployments_start_changes_only_with_a_move(acts: list[tuple[str, str, int]]) -> None:
    region = Region()
    known: dict[tuple[str, str], list[StartRecorded]] = {}
    for act, key, behind in acts:
        region.step(act, key, min(behind, len(region.log)))
        for name in KINDS:
            put = region.state.workloads.get(name) or region.state.routes.get(name)
            starts = region.state.start_parts_of(name)
            if put is None:
                assert not starts
            elif act != "move" or key != name:
                before = known.get((name, put.deployment))
                assert before is None or starts == before
            if put is not None and starts:
                known[name, put.deployment] = starts
