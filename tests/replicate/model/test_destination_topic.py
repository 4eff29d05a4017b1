"""The plan that makes a destination topic fit for its sources' records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.replicate.model.destination_topic import (
    ANY_AGE,
    SYNCED,
    Smaller,
    TopicPlan,
    TopicState,
    TopicSync,
    plan_topic,
)

DEFAULTS = {
    "retention.ms": "604800000",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "min.compaction.lag.ms": "0",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": "3600000",
    "min.insync.replicas": "1",
    "leader.replication.throttled.replicas": "",
}
SYNC = TopicSync()


def topic(partitions: int = 4, **own: str) -> TopicState:
    settings = {name.replace("_", "."): value for name, value in own.items()}
    return TopicState(partitions, DEFAULTS | settings, tuple(settings))


def apply_plan(plan: TopicPlan, present: TopicState | None) -> TopicState:
    """The destination topic after the plan."""
    if plan.create is not None:
        partitions, config = plan.create
        return TopicState(partitions, DEFAULTS | config, tuple(config))
    assert present is not None
    partitions = plan.expand_to or present.partitions
    own = {name: present.config[name] for name in present.own}
    own |= {name: value for name, value in plan.alter.items() if value is not None}
    own = {name: value for name, value in own.items() if plan.alter.get(name, "") is not None}
    return TopicState(partitions, DEFAULTS | own, tuple(own))


def test_settings_that_could_delete_records_of_others_stay_and_are_named() -> None:
    source = topic(retention_ms="5000")
    present = topic(cleanup_policy="compact", retention_ms="9000")

    plan = plan_topic({"orders in east": source}, present, SYNC, is_own=False)

    assert plan.alter == {}
    (note,) = (note for note in plan.notes if "adopt" in note.remedy)
    assert note.message == (
        "it has records, and Switchyard did not see it empty, so cleanup.policy stays compact (source: the "
        "default), retention.ms stays 9000 (source: 5000)"
    )
    for sync, is_own in ((replace(SYNC, adopt=True), False), (SYNC, True)):
        followed = plan_topic({"orders in east": source}, present, sync, is_own=is_own)
        assert {name: followed.alter[name] for name in ("cleanup.policy", "retention.ms")} == {
            "cleanup.policy": None, "retention.ms": "5000",
        }  # fmt: skip
    left = plan_topic({"orders in east": source}, present,
                      replace(SYNC, leave=("cleanup.policy", "retention.ms")), is_own=False)  # fmt: skip
    assert not any("adopt" in note.remedy for note in left.notes), "what people keep by hand needs no words"


def test_a_missing_topic_is_created_like_its_source() -> None:
    source = topic(12, cleanup_policy="compact", min_insync_replicas="2", max_message_bytes="5000000",
                   message_timestamp_type="LogAppendTime")  # fmt: skip

    plan = plan_topic({"orders in east": source}, None, SYNC)

    assert plan.create == (
        12,
        {"cleanup.policy": "compact", "max.message.bytes": "5000000", "message.timestamp.type": "CreateTime"},
    )
    assert not plan.blocked


def test_a_missing_topic_that_may_not_be_created_is_reported() -> None:
    plan = plan_topic({"orders in east": topic()}, None, replace(SYNC, create=False))

    assert not plan.changes
    assert "does not exist" in plan.blocked[0].message


def test_settings_follow_the_source_and_go_back_to_the_default_with_it() -> None:
    source = topic(retention_ms="1000", compression_type="zstd")
    present = topic(retention_ms="9", cleanup_policy="compact", min_insync_replicas="2")

    assert plan_topic({"s": source}, present, SYNC).alter == {
        "retention.ms": "1000",
        "compression.type": "zstd",
        "cleanup.policy": None,
    }


@pytest.mark.parametrize(
    "setting", ["min.insync.replicas", "leader.replication.throttled.replicas", "remote.storage.enable",
                "follower.replication.throttled.replicas", "unclean.leader.election.enable", "of.tomorrow"],
)  # fmt: skip
def test_settings_that_are_up_to_the_destination_never_follow(setting: str) -> None:
    source = TopicState(4, DEFAULTS | {setting: "9"}, (setting,))

    assert not plan_topic({"s": source}, TopicState(4, DEFAULTS | {setting: "1"}), SYNC).changes
    assert setting not in plan_topic({"s": source}, None, SYNC).create[1]  # type: ignore[index]
    assert setting not in SYNCED


def test_settings_that_are_kept_by_hand_stay() -> None:
    plan = plan_topic(
        {"s": topic(retention_ms="1")}, topic(retention_ms="2"), TopicSync(leave=("retention.ms",))
    )

    assert not plan.changes


def test_partitions_are_added_and_never_taken_away() -> None:
    assert plan_topic({"s": topic(8)}, topic(4), SYNC).expand_to == 8
    more = plan_topic({"s": topic(4)}, topic(8), SYNC)
    assert not more.changes
    assert "8 partitions, the source 4" in more.notes[0].message
    kept = plan_topic({"s": topic(8)}, topic(4), replace(SYNC, partitions=False))
    assert not kept.changes
    assert "add partitions" in kept.blocked[0].remedy


def test_a_limit_on_size_is_raised_and_never_lowered() -> None:
    large, small = topic(max_message_bytes="9000000"), topic(max_message_bytes="1000")

    assert plan_topic({"s": large}, small, SYNC).alter == {"max.message.bytes": "9000000"}
    assert not plan_topic({"s": small}, large, SYNC).changes


@pytest.mark.parametrize(
    ("smaller", "harm"),
    [
        ("block", "larger batches are divided, and larger records do not fit"),
        ("copy", "larger batches do not fit, and wait"),
        ("divide", "larger batches are divided, and larger records do not fit, and wait"),
    ],
)
def test_limits_that_cannot_be_raised_block_a_topic_only_where_the_route_says_so(
    smaller: Smaller, harm: str
) -> None:
    large = topic(max_message_bytes="9000000", message_timestamp_after_max_ms=ANY_AGE)
    small = topic(
        max_message_bytes="1000", message_timestamp_after_max_ms="3600000",
        message_timestamp_before_max_ms="1000",
    )  # fmt: skip
    sync = replace(SYNC, configuration=False, smaller=smaller)
    found = plan_topic({"s": large}, small, sync)
    assert not found.changes
    messages, none = (found.blocked, found.notes) if smaller == "block" else (found.notes, found.blocked)
    assert none == ()
    assert len(messages) == 3
    (bytes_,) = [str(one) for one in messages if one.message.startswith("max.message.bytes")]
    remedy = ", or write sync.onSmallerLimits: divide" if smaller == "block" else ""
    assert bytes_ == f"max.message.bytes is 1000: {harm}; set it to 9000000{remedy}"


def test_a_destination_keeps_the_timestamps_it_is_given() -> None:
    stamping = topic(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000")

    assert plan_topic({"s": topic()}, stamping, SYNC).alter == {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": str(2**63 - 1),
    }
    sync = TopicSync(leave=("message.timestamp.type",))
    assert sync.smaller == "divide"
    left = plan_topic({"s": topic()}, stamping, sync)
    assert "timestamps would be overwritten" in left.blocked[0].message


def test_sources_that_disagree_change_nothing_and_are_reported() -> None:
    many = {"orders in east": topic(4, retention_ms="1"), "orders in west": topic(6)}

    plan = plan_topic(many, topic(6, retention_ms="7"), SYNC)

    assert not plan.changes
    (note,) = plan.notes
    assert note == (
        "retention.ms: the sources disagree, so it stays as it is: "
        "1 (orders in east), the default (orders in west)",
        "",
    )


def test_a_setting_that_older_brokers_do_not_know_is_reported_and_not_tried() -> None:
    source = TopicState(4, DEFAULTS | {"compression.zstd.level": "9"}, ("compression.zstd.level",))

    plan = plan_topic({"s": source}, topic(), SYNC)

    assert not plan.changes
    assert plan.notes == (("compression.zstd.level: the destination's brokers do not know it", ""),)


settings = st.dictionaries(
    st.sampled_from([name for name in DEFAULTS if "throttled" not in name]),
    st.sampled_from(["1", "50", "2000000", "CreateTime", "LogAppendTime", "compact"]),
    max_size=4,
)
states = st.builds(
    lambda partitions, own: TopicState(partitions, DEFAULTS | own, tuple(own)), st.integers(1, 9), settings
)


@given(st.dictionaries(st.sampled_from("abc"), states, min_size=1), st.none() | states, st.booleans())
def test_carried_out_a_plan_leaves_nothing_to_do_and_takes_nothing_away(
    sources: dict[str, TopicState], present: TopicState | None, partitions: bool
) -> None:
    sync = TopicSync(partitions=partitions)
    after = present
    for _ in range(2 if present is None else 1):
        after = apply_plan(plan_topic(sources, after, sync), after)

    assert after is not None
    assert not plan_topic(sources, after, sync).changes
    assert after.partitions >= (present.partitions if present else 1)
    assert after.config["message.timestamp.type"] == "CreateTime"
