"""How much a receiver may be given, by a clock of the test's."""

from __future__ import annotations

from app.dispatch.model.circuit_breaker import DOWN_FAILURES, FIRST_PROBE_S
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.endpoint import SLOW_START_LEAST, SLOW_START_S
from app.dispatch.push.receiver import Receiver
from app.dispatch.scheduler.clients import TargetClients
from app.kernel.grpc_status import OK, UNAVAILABLE
from tests.dispatch.pump.rig import definition

NOBODY = "127.0.0.1:1"


async def test_a_receiver_that_is_back_gets_a_little_first_and_all_of_a_fixed_limit_a_moment_later() -> None:
    now_s, pump = 1_000.0, object()  # receivers only count by it
    workload = definition(NOBODY, flow={"max_inflight": 100})
    receiver = Receiver(workload, NOBODY, TargetClients("w1"), lambda: now_s, lambda: None)

    def answered(code: int) -> None:
        (endpoint,) = receiver.endpoints
        receiver.sent(endpoint, pump, 1)
        receiver.answered(endpoint, pump, CallResult(code), 1, now_s, now_s, spent=False)

    assert receiver.room(now_s) == 100
    for _ in range(DOWN_FAILURES):
        answered(UNAVAILABLE)
    assert receiver.room(now_s) == 0
    now_s += FIRST_PROBE_S
    assert receiver.room(now_s) == 1
    answered(OK)

    rooms = [receiver.room(now_s + SLOW_START_S * tenth / 10) for tenth in range(12)]
    assert rooms[0] == SLOW_START_LEAST
    assert rooms[5] in (49, 50)
    assert rooms[10:] == [100, 100]
    assert rooms == sorted(rooms)
    assert receiver.wait_s(now_s) > 0  # there will be more room although nothing is answered
    assert receiver.wait_s(now_s + SLOW_START_S) == 0
    await receiver.close()
