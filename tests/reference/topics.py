"""control-topics.md: the topics of the control cluster, from their declaration."""

from __future__ import annotations

from app.controllog.topics import ControlTopic, ControlTopics
from app.kernel.durations import format_duration
from tests.reference.markdown import code, sentence, table

REGION = "REGION"


def page() -> list[str]:
    """The page."""
    topics = ControlTopics(REGION)
    about = _docstrings(topics)
    sealed = {topic.name for topic in topics.sealed}
    read_by_other_regions = {
        topic.name for topic in (*topics.needed_by_other_regions, *topics.followed_by_other_regions)
    }
    return [
        "# Control topics",
        "A worker creates these topics in the control cluster of its region before it starts.",
        f"`{REGION}` stands for the region's name. Only workers of the region write a sealed topic: a record",
        "without their seal does not count.",
        "",
        *table(
            (
                "topic",
                "partitions",
                "cleanup",
                "retention",
                "sealed",
                "read by other regions",
                "what it holds",
            ),
            (
                (
                    code(topic.name),
                    str(topic.partitions),
                    topic.config["cleanup.policy"],
                    _retention(topic),
                    "yes" if topic.name in sealed else "no",
                    "yes" if topic.name in read_by_other_regions else "no",
                    about.get(topic.name) or _changelog(topics, topic),
                )
                for topic in topics.all()
            ),
        ),
        "## Settings of each topic",
        "",
        *table(
            ("topic", "settings"),
            (
                (
                    code(topic.name),
                    ", ".join(code(f"{name}={value}") for name, value in sorted(topic.config.items())),
                )
                for topic in topics.all()
            ),
        ),
    ]


def _changelog(topics: ControlTopics, topic: ControlTopic) -> str:
    table_name = topic.name.removeprefix(f"{topics.app_id}-").removesuffix("-changelog")
    return f"{sentence(ControlTopics.changelog.__doc__).rstrip('.')}: {code(table_name)}."


def _docstrings(topics: ControlTopics) -> dict[str, str]:
    """The description of each topic by its name."""
    found = {}
    for name, member in vars(ControlTopics).items():
        if isinstance(member, property) and isinstance(topic := getattr(topics, name), ControlTopic):
            found[topic.name] = sentence(member.__doc__)
    return found


def _retention(topic: ControlTopic) -> str:
    if topic.config["cleanup.policy"] == "compact":
        return "newest of each key"
    retention_ms = int(topic.config["retention.ms"])
    return "without end" if retention_ms < 0 else format_duration(retention_ms / 1000)
