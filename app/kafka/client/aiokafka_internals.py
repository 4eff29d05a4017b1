"""The private attributes of aiokafka's objects that this project uses, in one function each.

A new aiokafka may rename one of them. Then `tests/kafka/client/test_aiokafka_internals.py` fails and names
the function. Changes to aiokafka's own methods are in `app.kafka.client.aiokafka_patches`, and its consumers'
limits in `app.kafka.fetch.bounded_consumer`. No upstream issue is known that asks for public forms.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractContextManager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.producer.sender import Sender


def client_of(owner: AIOKafkaConsumer | AIOKafkaAdminClient) -> AIOKafkaClient:
    """The connections and metadata of a consumer or an admin client."""
    client: AIOKafkaClient = owner._client
    return client


def fetcher_of(consumer: AIOKafkaConsumer) -> Fetcher | None:
    """The part of a consumer that fetches; None before its start."""
    fetcher: Fetcher | None = consumer._fetcher
    return fetcher


def is_closed(reader: AIOKafkaConsumer | Fetcher) -> bool:
    """Whether a consumer or its fetcher was stopped."""
    return bool(reader._closed)


def counts_as_fetching(fetcher: Fetcher) -> AbstractContextManager[None]:
    """A block in which the consumer counts as polling, for `max_poll_interval_ms`."""
    block: AbstractContextManager[None] = fetcher._subscriptions.fetch_context()
    return block


def is_being_assigned(fetcher: Fetcher) -> bool:
    """Whether a rebalance is under way, or nothing is subscribed or assigned."""
    return bool(fetcher._subscriptions.reassignment_in_progress)


def next_fetch(fetcher: Fetcher) -> asyncio.Future[None]:
    """A future that ends with the next response that has records, or with the fetcher's end.

    It raises KafkaError if the permission to read is missing. Cancel it if it is not awaited to its end.
    """
    came: asyncio.Future[None] = fetcher._create_fetch_waiter()
    return came


def position_now(consumer: AIOKafkaConsumer, partition: TopicPartition) -> int | None:
    """The next offset to read, without a request; None: not assigned, or not known yet."""
    subscription = consumer._subscription.subscription
    assignment = None if subscription is None else subscription.assignment
    if assignment is None or (state := assignment.state_value(partition)) is None:
        return None
    return int(state.position) if state.has_valid_position else None


def keep_unsent(producer: AIOKafkaProducer) -> None:
    """Keeps records for any time until they are sent; by default they end with the request timeout."""
    producer._message_accumulator._batch_ttl = math.inf


def fail_unsent(producer: AIOKafkaProducer, error: BaseException) -> None:
    """Ends the futures of all records that were not acknowledged with this error. The producer refuses later
    records with it, too."""
    producer._message_accumulator.fail_all(error)


def sender_of(producer: AIOKafkaProducer) -> Sender:
    """The part of a started producer that sends."""
    sender: Sender = producer._sender
    return sender
