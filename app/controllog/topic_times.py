"""Settings of existing control topics: workers set the brokers' time (`app.controllog.topics.TIMES`), and
warn of other wrong settings."""

from __future__ import annotations

import structlog
from aiokafka.errors import KafkaError

from app.controllog.topics import TIMES, ControlTopics
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.needed_settings import LEAST, POLICY, problem_of, wrong_settings
from app.kafka.client.topic_configs import TopicSettings, alter, describe

log = structlog.get_logger(__name__)


async def use_brokers_time(client: ClusterClient, topics: ControlTopics) -> None:
    """Sets `TIMES` on the topics that lack it, and logs a warning where it may not.

    A worker whose clock is right works without it, so the worker starts.

    Raises:
        ClusterUnreachable: The cluster does not answer.
    """
    try:
        found = await describe(client, [topic.name for topic in topics.all()], TIMES)
        wrong = [
            name
            for name, settings in found.items()
            if isinstance(settings, TopicSettings) and not TIMES.items() <= settings.config.items()
        ]
        refused: dict[str, KafkaError] = {
            name: error for name, error in found.items() if isinstance(error, KafkaError)
        } | await alter(client, dict.fromkeys(wrong, TIMES))
    except (KafkaError, NotImplementedError) as error:
        refused = dict.fromkeys((topic.name for topic in topics.all()), KafkaError(repr(error)))
    if not refused:
        return
    topic = min(refused)
    log.warning(
        "control topics may keep their writers' timestamps; a worker whose clock is wrong then does not work",
        topics=sorted(refused), why=str(refused[topic]),
        remedy="grant this worker AlterConfigs and DescribeConfigs on them, or use kafka-configs.sh "
        f"--alter --topic {topic} --add-config message.timestamp.type=LogAppendTime",
    )  # fmt: skip


async def warn_of_settings(client: ClusterClient, topics: ControlTopics) -> None:
    """Logs settings that would lose or refuse records of control topics; changes nothing.

    Raises:
        ClusterUnreachable: The cluster does not answer.
    """
    names = LEAST | {POLICY}
    needed = {
        topic.name: {name: value for name, value in topic.config.items() if name in names}
        for topic in topics.all()
    }
    try:
        found = await describe(client, needed, names)
    except (KafkaError, NotImplementedError):
        return  # `use_brokers_time` has warned already
    for topic, settings in sorted(found.items()):
        if isinstance(settings, KafkaError):
            continue
        if wrong := wrong_settings(settings.config, needed[topic]):
            problem = problem_of(client.spec, topic, settings.config, wrong)
            log.warning("a control topic has a wrong setting", why=problem.message, remedy=problem.remedy)
