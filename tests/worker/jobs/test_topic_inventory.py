"""The inventory of a cluster's topics takes growth at once, loss later; unread settings stay unknown."""

from __future__ import annotations

from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from app.kafka.client.topic_configs import TopicSettings
from app.worker.jobs.topic_inventory import SETTINGS_INTERVAL_S, TOPIC_GONE_AFTER_S, ClusterTopics


def test_a_lagging_broker_removes_neither_topics_nor_partitions() -> None:
    topics = ClusterTopics()
    topics.update_sizes({"orders": 2, "refunds": 1}, 0.0)
    topics.update_sizes({"orders": 4}, 1.0)
    assert topics.sizes == {"orders": 4, "refunds": 1}
    topics.update_sizes({"orders": 2}, 2.0)
    topics.update_sizes({"orders": 4, "refunds": 1}, 3.0)
    topics.update_sizes({}, 4.0)
    topics.update_sizes({}, 4.0 + TOPIC_GONE_AFTER_S - 0.1)
    assert topics.sizes == {"orders": 4, "refunds": 1}


def test_a_topic_missing_for_long_is_gone() -> None:
    topics = ClusterTopics()
    topics.update_sizes({"orders": 4, "refunds": 1}, 0.0)
    names = topics.names
    for at_s in (1.0, 1.0 + TOPIC_GONE_AFTER_S):
        topics.update_sizes({"orders": 2}, at_s)
    assert topics.sizes == {"orders": 2}
    assert topics.names != names


def test_a_topic_of_unknown_size_is_not_gone() -> None:
    topics = ClusterTopics()
    topics.update_sizes({"orders": 4}, 0.0)
    for at_s in (1.0, 1.0 + TOPIC_GONE_AFTER_S):
        topics.update_sizes({}, at_s, unsure={"orders"})
    assert topics.sizes == {"orders": 4}


def test_settings_that_may_not_be_read_are_not_taken_for_defaults() -> None:
    topics = ClusterTopics()
    topics.update_sizes({"orders": 4, "made": 1}, 0.0)
    assert topics.lacks({"orders"})
    topics.settings(
        {"orders": TopicAuthorizationFailedError("no"), "made": UnknownTopicOrPartitionError()}, 0.0
    )
    assert "no" in topics.troubles["orders"]
    assert not topics.lacks({"orders"})
    assert topics.lacks({"made"}), "the topic is being created, and is requested again"


def test_a_topic_is_the_same_object_until_something_of_it_changes() -> None:
    topics = ClusterTopics()
    topics.update_sizes({"orders": 4}, 0.0)
    for at_s in (0.0, SETTINGS_INTERVAL_S):
        topics.settings({"orders": TopicSettings({"retention.ms": "5"}, frozenset())}, at_s)
        state = topics.state("orders")
        version = topics.version
        topics.settings({"orders": TopicSettings({"retention.ms": "5"}, frozenset())}, at_s)
        assert topics.state("orders") is state
        assert topics.version == version
    topics.update_sizes({"orders": 5}, 40.0)
    assert (topics.state("orders") or state).partitions == 5  # type: ignore[union-attr]
