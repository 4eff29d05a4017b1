"""A synced position goes back only after its group, and the offset map's ignorance moves no position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernel.fencing import LogId
from app.offsets.model.group_sync import (
    BEYOND_MAPPED,
    MAX_MARK_BYTES,
    QUIET_GROUP_S,
    CommitDecision,
    ForeignCommitWatch,
    GroupPosition,
    decide,
    is_own,
    stamped,
)
from app.offsets.model.offset_map import Barrier, OffsetMapLine
from app.offsets.model.translation import (
    CopiedLine,
    CopiedPartition,
    Log,
    ResumePosition,
    TopicIdentity,
    TopicRelation,
    resume,
)

READ, TO = TopicIdentity("east", "orders", "s"), TopicIdentity("west", "orders", "t")


def mapped(next_offsets: dict[int, int], *barriers: tuple[int, int], start: int = 0) -> ResumePosition:
    line = OffsetMapLine(
        target_topic="orders", target_partition=0, epoch=1, lineage=0, source=LogId("east", "s"),
        target=LogId("west", "t"), barriers=[Barrier(*at) for at in barriers],
    )  # fmt: skip
    into = [CopiedLine("west", "r", CopiedPartition("east", "orders", 0), line)]
    return resume(TopicRelation.COPY, READ, TO, next_offsets, [], into, {0: Log(start, 10**6)}).answers[0]


EVERY = [(n * 10, n * 12) for n in range(100)]


def step(
    have: GroupPosition | None, at: int, *barriers: tuple[int, int]
) -> tuple[GroupPosition | None, CommitDecision]:
    made = decide(have, mapped({0: at}, *(barriers or EVERY)), READ, {0: at})
    return (have if made.next_offset is None else GroupPosition(made.next_offset, made.mark)), made


@given(st.lists(st.integers(0, 990), min_size=1, max_size=30))
def test_a_position_follows_its_group_forward_and_back(positions: list[int]) -> None:
    have: GroupPosition | None = None
    for at in positions:
        have, _ = step(have, at)
        assert have is not None
        assert have.next_offset <= at // 10 * 12
    assert have is not None
    last = positions[-1]
    highest = max(positions)
    # Positions between two barriers map to the same one, so a step back between them changes nothing.
    assert have.next_offset == last // 10 * 12 or have.next_offset <= highest // 10 * 12


def test_a_position_goes_back_only_after_its_group_went_back() -> None:
    have, _ = step(None, 500)
    assert have is not None
    assert have.next_offset == 600
    fewer = EVERY[:20]
    assert step(have, 500, *fewer)[1] == CommitDecision(None, why=BEYOND_MAPPED), (
        "the map knows less: it stays"
    )
    assert step(have, 510, *fewer)[1] == CommitDecision(None, why=BEYOND_MAPPED)
    back, _ = step(have, 400)
    assert back is not None
    assert back.next_offset == 480


@pytest.mark.parametrize("metadata", ["", "mine", '["switchyard-offsets"]', '{"a":1}', "\ud800"])
def test_a_foreign_position_is_passed_and_never_moved_back(metadata: str) -> None:
    assert step(GroupPosition(700, metadata), 400)[1] == CommitDecision(None, why=BEYOND_MAPPED)
    assert step(GroupPosition(100, metadata), 400)[1].next_offset == 480


def test_a_mark_of_another_log_allows_no_move_back() -> None:
    have, _ = step(None, 500)
    assert have is not None
    for other in (READ._replace(topic_id="anew"), READ._replace(cluster_id="n"), READ._replace(topic="x")):
        assert decide(have, mapped({0: 400}, *EVERY), other, {0: 400}).why == BEYOND_MAPPED


def test_without_knowledge_the_logs_start_is_committed_only_for_a_group_without_a_position() -> None:
    unknown = mapped({0: 3}, (5, 5), start=2)
    assert unknown.why
    assert decide(None, unknown, READ, {0: 3}).next_offset == 2
    assert decide(GroupPosition(1, ""), unknown, READ, {0: 3}).next_offset is None
    marked = decide(None, mapped({0: 9}, (0, 0)), READ, {0: 9})
    assert decide(GroupPosition(4, marked.mark), unknown, READ, {0: 3}).next_offset is None


def test_an_unchanged_position_is_not_written_again() -> None:
    have, _ = step(None, 500)
    assert step(have, 505)[1] == CommitDecision(None)


def test_a_mark_that_is_too_long_is_written_without_the_way_back() -> None:
    answer = mapped({0: 5}, *EVERY)
    long = READ._replace(topic="t" * MAX_MARK_BYTES)
    made = decide(None, answer, long, {0: 5})
    assert (made.next_offset, len(made.mark) < 50) == (0, True)
    have = {("orders", 0): GroupPosition(900, made.mark)}
    assert ForeignCommitWatch().observe("west", "g", have, 0.0) == "", "it is still known for ours"
    assert decide(have["orders", 0], answer, long, {0: 5}).why == BEYOND_MAPPED


STEPS = st.tuples(
    st.sampled_from(["theirs", "worker", "ours", "look"]), st.integers(0, 2), st.integers(1, 40)
)


@given(st.lists(STEPS, max_size=60))
def test_a_foreign_position_moves_only_after_a_minute_without_commits(
    steps: list[tuple[str, int, int]],
) -> None:
    watch, have, now_s = ForeignCommitWatch(), dict[tuple[str, int], GroupPosition](), 0
    moved_s: dict[tuple[str, int], int] = {}  # when another client committed the present position
    looked_s: int | None = None  # since when the watch has seen all of these
    for kind, partition, passed_s in steps:
        now_s += passed_s
        at = "orders", partition
        if kind == "ours":
            mark = decide(None, mapped({0: 10}, *EVERY), READ, {0: 10}).mark
            have[at] = GroupPosition(now_s, mark)
            moved_s.pop(at, None)
        elif kind != "look":  # a worker's position may stand still, a consumer's moves
            offset, metadata = (now_s, "") if kind == "theirs" else (7, stamped("w-1", now_s))
            have[at] = GroupPosition(offset, metadata)
            moved_s[at], looked_s = now_s, None
        else:
            why = watch.observe("west", "g", have, now_s)
            if not moved_s:
                assert why == ""
                looked_s = None
                continue
            looked_s = now_s if looked_s is None else looked_s
            if now_s - max(moved_s.values()) < QUIET_GROUP_S:
                assert "left alone until no position has changed" in why
            if now_s - looked_s >= QUIET_GROUP_S:
                assert why == ""


def test_only_commits_of_workers_and_offset_sync_are_switchyards_own() -> None:
    kept, _ = step(None, 100)
    assert kept is not None
    long = decide(None, mapped({0: 100}, *EVERY), READ._replace(topic="t" * MAX_MARK_BYTES), {0: 100}).mark
    assert all(map(is_own, (kept.metadata, long, stamped("a-worker", 1))))
    assert not any(map(is_own, ("", "mine", "{}", "[]", '["switchyard-other",1]', "\ud800")))


def test_the_committing_client_is_named_as_far_as_it_is_known() -> None:
    watch, at = ForeignCommitWatch(), ("orders", 0)
    assert watch.observe("west", "g", {}, 0.0) == ""
    why = watch.observe("west", "g", {at: GroupPosition(5, stamped("west-7", 1))}, 0.0)
    assert why.startswith("Switchyard worker west-7 committed orders-0 there; the group is left alone")
    assert "(30 s so far)" in watch.observe("west", "g", {at: GroupPosition(5, stamped("west-7", 1))}, 30.0)
    assert watch.observe("west", "g", {at: GroupPosition(5, stamped("west-7", 1))}, QUIET_GROUP_S) == ""
    again = watch.observe("west", "g", {at: GroupPosition(5, stamped("west-7", 2))}, QUIET_GROUP_S)
    assert again, "a worker that has nothing to do says every half a minute that it is there"
    assert "a client that need not be a member" in watch.observe(
        "west", "g", {at: GroupPosition(6, "")}, 2 * QUIET_GROUP_S
    )
    assert watch.observe("east", "g", {at: GroupPosition(6, "")}, 9 * QUIET_GROUP_S), (
        "another cluster is another matter"
    )
