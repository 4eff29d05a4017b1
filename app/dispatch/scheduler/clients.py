"""Makes the clients of a workload's receiver: unary and stream, by the transport of its definition."""

from __future__ import annotations

from collections.abc import Callable

from app.dispatch.definition import Workload
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.grpc_transport import GrpcStreamChannel, GrpcUnaryTarget
from app.dispatch.push.http2_transport import Http2StreamChannel, Http2UnaryTarget
from app.dispatch.push.stream.client import METHOD, StreamTarget
from app.dispatch.push.transport import StreamChannel, UnaryTarget
from app.grpc_client.resolver import Target


class TargetClients:
    """Makes clients for one worker, whose name receivers see."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def unary(self, workload: Workload, address: str) -> UnaryTarget:
        make: Callable[[str, str], UnaryTarget]
        make = Http2UnaryTarget if _is_http2(workload, address) else GrpcUnaryTarget
        return make(address, workload.method())

    def stream(
        self,
        workload: Workload,
        address: str,
        on_room: Callable[[], None],
        on_lost: Callable[[CallResult], None],
    ) -> StreamTarget:
        make: Callable[[str, str], StreamChannel]
        make = Http2StreamChannel if _is_http2(workload, address) else GrpcStreamChannel
        return StreamTarget(
            make(address, METHOD),
            group=workload.metadata.group,
            topic=workload.metadata.topic,
            worker=self._worker,
            timeout_s=workload.spec.target.timeout,
            on_room=on_room,
            on_lost=on_lost,
        )


def _is_http2(workload: Workload, address: str) -> bool:
    """An address that names a DNS server is only for gRPC."""
    if workload.spec.target.transport != "http2":
        return False
    try:
        Target.parse(address)
    except ValueError:
        return False
    return True
