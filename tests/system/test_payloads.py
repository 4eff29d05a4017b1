"""Protobuf values and an operator's interceptors, through a real broker while a worker is killed. Receivers
get each message in the form that the definition names, and dead letters are as the records were."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import orjson
import pytest

from app.dev.demo.stage import DemoStage, wait_until, workload
from app.dev.demo.traffic import create_topic
from switchyard.receiver import Message
from tests.system.fleet import start_workers
from tests.system.receiver_thread import ReceiverThread
from tests.system.records import NewRecord, dead_letters, send_records

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, EACH, SETTLE_S = "east-aggregate", "billing", 4, 100, 90.0
MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
ORDER = """
syntax = "proto3";
package shop;
import "money.proto";
message Note { string text = 1; }
message Order { string id = 1; Money total = 2; }
"""
FRAME = b"\0" + (77).to_bytes(4) + b"\x02\x02"  # Confluent's: schema 77, the second message
REASONS = {
    "broken": "shop.Order",
    "banned": "interceptor tests.system.unpacking:Screen: its sender is banned",
    "garbled": "interceptor tests.system.unpacking:Unpack raised error",
}


def order(name: str) -> bytes:
    """An Order of 5 cents."""
    return b"\x0a" + bytes([len(name)]) + name.encode() + b"\x12\x02\x08\x05"


def records(first: int, frame: bytes) -> list[NewRecord]:
    """As many of each kind, in turn; a key is `kind number`."""
    made: list[NewRecord] = []
    for number in range(first, first + EACH):
        for kind in ("plain", "packed", "erased", *REASONS):
            name = f"{kind} {number}"
            value = frame + order(name)
            if kind == "packed":
                value = zlib.compress(value)
            elif kind == "broken":
                value = frame + b"\x0a\xff"
            made.append(NewRecord(value, name.encode(), [("packed" if kind == "garbled" else kind, b"1")]))
        made.append(NewRecord(None, f"tombstone {number}".encode()))
    return made


class Shop(ReceiverThread):
    """Notes each message by its key, with its value and what was added to it."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, GROUP)
        self.taken: dict[str, tuple[bytes, dict[str, bytes]]] = {}
        self.tombstones: set[str] = set()

    def handle(self, message: Message) -> None:
        assert message.key is not None
        name = message.key.decode()
        self.taken[name] = message.value, dict(message.headers)
        if message.tombstone:
            self.tombstones.add(name)


@pytest.mark.parametrize("contract", ["unary", "stream"])
@pytest.mark.parametrize("deliver", ["json", "bytes"])
def test_messages_come_in_the_form_of_their_definition_while_a_worker_is_killed(
    stage: DemoStage, topic_name: str, tmp_path: Path, contract: str, deliver: str
) -> None:
    (tmp_path / "money.proto").write_text(MONEY)
    (tmp_path / "order.proto").write_text(ORDER)
    stage.settings["schemas"] = str(tmp_path)
    stage.settings["interceptors"] = ["tests.system.unpacking:Screen", "tests.system.unpacking:Unpack"]
    framing, frame = ("confluent", FRAME) if deliver == "bytes" else ("raw", b"")
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = start_workers(stage, 2)
    protobuf = {"descriptor": "order.proto", "message": "shop.Order", "framing": framing}
    payload = {"protobuf": {**protobuf, "deliver": deliver, "invalid": "dlq"}}

    def letters() -> dict[str, tuple[bytes | None, str]]:
        return dead_letters(bootstrap, topic_name, GROUP)

    with Shop(topic_name).serving() as receiver:
        spec = {"target": {"contract": contract}, "payload": payload, "dlq": {"share": 1.0}}
        stage.deploy(workers[0], workload(GROUP, topic_name, CLUSTER, receiver.address, **spec))
        send_records(bootstrap, topic_name, records(0, frame))
        wait_until(lambda: len(receiver.taken) >= EACH, SETTLE_S, workers[0].tail)
        workers[1].kill()
        send_records(bootstrap, topic_name, records(EACH, frame))
        sent = {one.key.decode(): one for one in records(0, frame) + records(EACH, frame) if one.key}
        skipped = {name for name in sent if name.startswith("erased")}
        wait_until(
            lambda: receiver.taken.keys() | letters().keys() >= sent.keys() - skipped,
            SETTLE_S,
            lambda: f"{sent.keys() - skipped - receiver.taken.keys() - letters().keys()} {workers[0].tail()}",
        )

    dead = letters()
    assert dead.keys() == {name for name in sent if name.partition(" ")[0] in REASONS}
    for name, (value, reason) in dead.items():
        assert value == sent[name].value, "a dead letter is the record as it was"
        assert REASONS[name.partition(" ")[0]] in reason
    assert receiver.taken.keys() == sent.keys() - skipped - dead.keys()
    assert receiver.tombstones == {name for name in sent if name.startswith("tombstone")}
    for name, (value, added) in receiver.taken.items():
        kind = name.partition(" ")[0]
        if kind == "tombstone":
            assert (value, added) == (b"", {})
        elif deliver == "json":
            assert orjson.loads(value) == {"id": name, "total": {"cents": "5"}}
            assert added["switchyard-payload-format"] == b"json"
            assert added["switchyard-payload-message"] == b"shop.Order"
        else:
            assert (value, added["switchyard-schema-id"]) == (order(name), b"77")
        assert ("x-packed-bytes" in added) == (kind == "packed" and contract == "stream")
