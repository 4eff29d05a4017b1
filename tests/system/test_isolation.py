"""Environments and zones have receivers of their own, through a real broker and by both contracts. Receivers
go away and come back, a worker is killed, and every message is counted where it belongs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import ExitStack

import pytest

from app.dev.demo.stage import DemoStage, free_port, wait_until, workload
from app.dev.demo.traffic import create_topic
from switchyard.receiver import Message
from tests.system.fleet import start_workers
from tests.system.receiver_thread import ReceiverThread
from tests.system.records import NewRecord, dead_letters, send_records

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, EACH, SETTLE_S = "east-aggregate", "billing", 4, 60, 90.0
MAIN, STAGING, WEST, SOUTH = "main", "staging", "west", "south"
# Of each kind of message the headers, and the receiver that must have it; None: the dead letter queue
KINDS: list[tuple[dict[str, str], str | None]] = [
    ({}, MAIN),
    ({"X-Environment": "production", "x-zone": "nowhere"}, MAIN),
    ({"x-environment": "staging"}, STAGING),
    ({"x-environment": "staging", "x-zone": "west"}, STAGING),
    ({"x-zone": "west"}, WEST),
    ({"x-environment": "prod", "x-zone": "south"}, SOUTH),
    ({"x-environment": "load-test"}, None),
    ({"x-environment": ""}, None),
]


class Tenant(ReceiverThread):
    """One of the receivers; it notes what it gets under its name."""

    def __init__(self, topic: str, name: str, taken: dict[str, set[str]], port: int) -> None:
        super().__init__(topic, GROUP, port=port)
        self._name, self._taken = name, taken

    def handle(self, message: Message) -> None:
        self._taken[self._name].add(message.value.decode())


def records(first: int) -> list[NewRecord]:
    """As many of each kind, in turn; their values and keys are `kind number`."""
    made = []
    for number in range(first, first + EACH):
        for kind, (headers, _) in enumerate(KINDS):
            name = f"{kind} {number}".encode()
            made.append(NewRecord(name, name, [(header, text.encode()) for header, text in headers.items()]))
    return made


def names_of(place: str | None, *firsts: int) -> set[str]:
    """The values of all messages that belong there."""
    kinds = [kind for kind, (_, at) in enumerate(KINDS) if at == place]
    return {f"{kind} {first + number}" for kind in kinds for first in firsts for number in range(EACH)}


@pytest.mark.parametrize("contract", ["unary", "stream"])
def test_messages_stay_in_their_environment_and_zone_while_receivers_are_away(
    stage: DemoStage, topic_name: str, contract: str
) -> None:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = start_workers(stage, 2)
    ports = {name: free_port() for name in (MAIN, STAGING, WEST, SOUTH)}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    taken: dict[str, set[str]] = defaultdict(set)

    def dead() -> set[str]:
        letters = dead_letters(bootstrap, topic_name, GROUP)
        assert all((value or b"").decode() == name for name, (value, _) in letters.items())
        return set(letters)

    def wait_for(names: set[str], *places: str) -> None:
        wait_until(
            lambda: names <= set().union(*(taken[place] for place in places)), SETTLE_S, workers[0].tail
        )

    def serve(stack: ExitStack, name: str) -> None:
        stack.enter_context(Tenant(topic_name, name, taken, ports[name]).serving())

    isolation = {
        "environment": "x-environment",
        "zone": "x-zone",
        "fallbackAfter": "5s",
        "targets": [
            {"environment": "staging", "address": at[STAGING]},
            {"zone": "west", "address": at[WEST], "fallback": "south"},
            {"zone": "south", "address": at[SOUTH]},
        ],
    }
    with ExitStack() as all_the_time, ExitStack() as at_first:
        for name in (MAIN, SOUTH):
            serve(all_the_time, name)
        for name in (STAGING, WEST):
            serve(at_first, name)
        spec = {"target": {"contract": contract}, "isolation": isolation, "dlq": {"share": 1.0}}
        stage.deploy(workers[0], workload(GROUP, topic_name, CLUSTER, at[MAIN], **spec))
        send_records(bootstrap, topic_name, records(0))
        wait_until(lambda: len(taken[MAIN]) >= EACH // 2, SETTLE_S, workers[0].tail)
        workers[1].kill()
        for place in (MAIN, STAGING, WEST, SOUTH):
            wait_for(names_of(place, 0), place)
        assert not taken[SOUTH] & names_of(WEST, 0), "its own receiver was there"

        at_first.close()
        send_records(bootstrap, topic_name, records(EACH))
        wait_for(names_of(MAIN, EACH), MAIN)
        wait_for(names_of(SOUTH, EACH) | names_of(WEST, EACH), SOUTH)
        elsewhere = taken[MAIN] | taken[WEST] | taken[SOUTH] | dead()
        assert not elsewhere & names_of(STAGING, EACH), "they wait"

        for name in (STAGING, WEST):
            serve(all_the_time, name)
        wait_for(names_of(STAGING, EACH), STAGING)
        firsts = [0, EACH]

        def west_is_back() -> bool:
            firsts.append(firsts[-1] + EACH)
            send_records(bootstrap, topic_name, records(firsts[-1]))
            wait_for(names_of(WEST, firsts[-1]), WEST, SOUTH)
            return not taken[SOUTH] & names_of(WEST, firsts[-1])

        wait_until(west_is_back, SETTLE_S, workers[0].tail, pause_s=1.0)
        for place in (MAIN, STAGING, SOUTH):
            wait_for(names_of(place, *firsts), place)
        wait_until(lambda: dead() >= names_of(None, *firsts), SETTLE_S, workers[0].tail)

    assert taken[MAIN] == names_of(MAIN, *firsts)
    assert taken[STAGING] == names_of(STAGING, *firsts)
    assert taken[WEST] | taken[SOUTH] == names_of(WEST, *firsts) | names_of(SOUTH, *firsts)
    assert not taken[WEST] & names_of(SOUTH, *firsts)
    assert dead() == names_of(None, *firsts)
