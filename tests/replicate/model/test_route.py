"""The topics that a route copies, and the names of their copies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog.topics import ControlTopics
from app.replicate.model.regular_language import LETTERS, LanguageTable
from app.replicate.model.route import BadRename, Route, TopicRename, is_topic
from tests.replicate.model.route_oracle import SHORT, copies, routes

topic_names = st.sampled_from(SHORT) | st.text(LETTERS, min_size=1, max_size=12)


def route(*topics: str, exclude: tuple[str, ...] = (), to: str = "{topic}") -> Route:
    return Route("r", "east", "west", topics, exclude, TopicRename.of(after=to, cluster="east"))


@given(routes(), topic_names)
def test_a_topic_is_copied_by_the_rules_whatever_engine_reads_them(one: Route, topic: str) -> None:
    copy = one.rename(topic)

    assert one.destination(topic) == (copy if copies(one, topic) and is_topic(copy) else None)
    assert (one.why_not(topic) is None) == (one.destination(topic) is not None)


@given(routes(), topic_names)
def test_the_computed_languages_are_the_copied_topics(one: Route, topic: str) -> None:
    words = LanguageTable()

    assert words.holds(one.domain(words), topic) == copies(one, topic)


@given(routes(), routes(), topic_names)
def test_the_origins_of_names_are_exactly_the_topics_that_get_them(
    one: Route, other: Route, topic: str
) -> None:
    words = LanguageTable()
    origin = one.rename.origin(words, other.domain(words))

    assert words.holds(origin, topic) == copies(other, one.rename(topic))


def test_names_of_mirrormaker_2_and_of_ureplicator() -> None:
    assert route(".*", to="{cluster}.{topic}").destination("orders") == "east.orders"
    assert route(".*").destination("orders") == "orders"
    own = TopicRename.of(names={"orders": "orders-all"}, cluster="east")
    assert Route("r", "east", "west", (".*",), rename=own).destination("orders") == "orders-all"


def test_a_prefix_is_replaced_and_a_topic_that_does_not_fit_keeps_its_name() -> None:
    moved = TopicRename.of("prod.{topic}", "{cluster}.{topic}.copy", cluster="east")

    assert moved("prod.orders") == "east.orders.copy"
    assert moved("orders") == "orders"
    assert moved("prod.") == "prod."  # no stem


@pytest.mark.parametrize(
    "template", ["{cluster}", "orders", "{topic}{topic}", "a/{topic}", "{tpic}.{topic}", ""]
)
def test_an_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(BadRename):
        TopicRename.of(after=template, cluster="east")


INTERNAL = ["__consumer_offsets", "__transaction_state", "orders__billing__dlq", "orders__billing__retry_2",
            "orders__billing__merge", "orders__billing__delayed", "mm2-offset-syncs.west.internal",
            "west.checkpoints.internal", *[topic.name for topic in ControlTopics("east").all()]]  # fmt: skip


@pytest.mark.parametrize("topic", INTERNAL)
def test_internal_topics_are_copied_only_by_their_names(topic: str) -> None:
    everything = route(".*", topic.replace("_", "[_]", 1) + "+")

    assert everything.destination(topic) is None
    assert "internal" in str(everything.why_not(topic))
    assert route(".*", topic).destination(topic) == topic
    assert route(topic, exclude=(topic,)).destination(topic) is None


@pytest.mark.parametrize("topic", ["payments.internal", "orders_dlq", "switchyard", "retry_1", "a__b__dlqs"])
def test_a_topic_that_only_looks_internal_is_copied(topic: str) -> None:
    assert route(".*").destination(topic) == topic


def test_the_reason_why_a_topic_is_not_copied_is_given() -> None:
    one = route(r"orders\..*", exclude=(r".*\.test",), to="{topic}" + "x" * 240)

    assert one.why_not("orders.test") == r"excluded by '.*\.test'"
    assert one.why_not("refunds") == "no entry of topics matches it"
    why = str(one.why_not("orders.created"))
    assert "which Kafka does not accept (254 characters, at most 249); give its copy another name" in why


def test_a_hundred_thousand_topics_and_a_thousand_entries() -> None:
    many = route(
        *(f"team{number}-topic" for number in range(900)), *(rf"team{n}\..+-\d+" for n in range(100))
    )
    topics = [f"team{number % 200}.orders-{number}" for number in range(100_000)]

    assert sum(many.destination(topic) is not None for topic in topics) == 50_000
    assert many.destination("team899-topic") == "team899-topic"
    assert many.destination("team900-topic") is None
