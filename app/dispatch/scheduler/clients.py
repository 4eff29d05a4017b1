"""Makes the gRPC clients of a workload's receiver: unary and stream."""

from __future__ import annotations

from collections.abc import Callable

from app.dispatch.definition import Workload
from app.dispatch.push.stream.client import StreamTarget
from app.dispatch.push.unary import CallResult, UnaryTarget


class GrpcTargets:
    """Makes clients for one worker, whose name receivers see."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def unary(self, workload: Workload, address: str) -> UnaryTarget:
        return UnaryTarget(address, workload.method())

    def stream(
        self,
        workload: Workload,
        address: str,
        on_room: Callable[[], None],
        on_lost: Callable[[CallResult], None],
    ) -> StreamTarget:
        return StreamTarget(
            address,
            group=workload.metadata.group,
            topic=workload.metadata.topic,
            worker=self._worker,
            timeout_s=workload.spec.target.timeout,
            on_room=on_room,
            on_lost=on_lost,
        )
