"""A secured yard requires a login, and refuses requests that no access control list allows."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from app.dev.yard import Yard
from app.dev.yard.probe import answers
from app.dev.yard.security import ADMIN, YardSecurity
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topics import TopicSpec, ensure_topics
from tests.kafka.acls import DESCRIBE, TOPIC, Acls, spec_of

CLUSTER = "east-regional"


@pytest.mark.parametrize("users", [{}, {"switchyard": "word"}, {ADMIN: 'a"b'}, {"a b": "c", ADMIN: "d"}])
def test_users_that_no_configuration_file_can_hold_are_refused(users: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="users: "):
        YardSecurity(users)


async def test_a_client_without_login_gets_no_answer_and_one_with_login_may_do_what_was_granted(
    secured: Yard, topic_name: str
) -> None:
    bootstrap = secured.bootstrap(CLUSTER)
    assert not answers(bootstrap)
    assert not answers(bootstrap, login=(ADMIN, "wrong"))
    assert secured.security is not None
    assert answers(bootstrap, login=secured.security.login)

    admin, user = (ClusterClient(spec_of(secured, CLUSTER, name)) for name in (ADMIN, "switchyard"))
    await admin.start()
    await user.start()
    try:
        await ensure_topics(admin, [TopicSpec(topic_name, 2, 1)])
        with pytest.raises(TopicAuthorizationFailedError):
            await user.partitions(topic_name)
        acls = Acls(admin)
        await acls.allow("switchyard", TOPIC, topic_name, DESCRIBE)
        async with asyncio.timeout(60):
            while topic_name not in await user.topics():  # noqa: ASYNC110 - the broker decides
                await asyncio.sleep(0.05)
        assert await user.partitions(topic_name) == 2
        await acls.withdraw("switchyard", TOPIC, topic_name, DESCRIBE)
        async with asyncio.timeout(60):
            while topic_name in await user.topics():  # noqa: ASYNC110 - the broker decides
                await asyncio.sleep(0.05)
    finally:
        await user.stop()
        await admin.stop()
