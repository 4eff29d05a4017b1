"""Makes the clients of a workload's receiver, by the transport of its definition, and looks its name up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.dispatch.definition import Workload
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.endpoint import Place
from app.dispatch.push.grpc_transport import GrpcHealthClient, GrpcStreamChannel, GrpcUnaryTarget
from app.dispatch.push.health import HealthClient
from app.dispatch.push.http2_transport import (
    MAX_AGE_S,
    VIRTUAL_CHANNELS,
    Http2HealthClient,
    Http2StreamChannel,
    Http2UnaryTarget,
    Server,
    proxy_to,
)
from app.dispatch.push.stream.client import METHOD, ONE_STREAM, Streams, StreamTarget
from app.dispatch.push.transport import StreamChannel, UnaryTarget
from app.grpc_client.address import Address, Proxy
from app.grpc_client.resolver import Resolver
from app.grpc_client.target import Target

ANY_PORT = 1  # exemptions from a proxy regard hosts only


class TargetClients:
    """Makes clients that name this worker to the receiver."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def endpoints(
        self, workload: Workload, address: str, follow: Callable[[Sequence[str]], None]
    ) -> Resolver | None:
        """Calls `follow` with the names of the endpoints: now, or each time that a look-up finds others."""
        target = _http2_target(workload, address)
        if target is None:
            follow([address])  # grpcio resolves the name, and balances
            return None
        if target.is_fixed or (not target.service and _proxy(target) is not None):
            follow(list(dict.fromkeys(map(str, target.places))))  # a proxy resolves names, but no SRV records
            return None
        return Resolver(target, lambda found: follow([str(place) for place in found]))

    def unary(self, workload: Workload, place: Place) -> UnaryTarget:
        server = _server(workload, place)
        if server is None:
            return GrpcUnaryTarget(place.name, workload.method())
        return Http2UnaryTarget(server, workload.method())

    def stream(
        self,
        workload: Workload,
        place: Place,
        on_room: Callable[[], None],
        on_lost: Callable[[CallResult], None],
    ) -> StreamTarget:
        server = _server(workload, place)
        channel: StreamChannel
        streams = ONE_STREAM
        if server is None:
            channel = GrpcStreamChannel(place.name, METHOD)
        else:
            if place.is_alone and _is_name(workload, place):
                streams = Streams(VIRTUAL_CHANNELS, MAX_AGE_S)
            channel = Http2StreamChannel(server, METHOD, streams.number)
        return StreamTarget(
            channel,
            group=workload.metadata.group,
            topic=workload.metadata.topic,
            worker=self._worker,
            timeout_s=workload.spec.target.timeout,
            on_room=on_room,
            on_lost=on_lost,
            streams=streams,
        )

    def health(self, workload: Workload, place: Place) -> HealthClient:
        server = _server(workload, place)
        return GrpcHealthClient(place.name) if server is None else Http2HealthClient(server)


def _http2_target(workload: Workload, address: str) -> Target | None:
    """What our own client makes of the address; None: it is for grpcio, as one that names a DNS server."""
    if workload.spec.target.transport != "http2":
        return None
    try:
        return Target.parse(address)
    except ValueError:
        return None


def _is_name(workload: Workload, place: Place) -> bool:
    """Whether the target is a name, as that of a load balancer; a single server is often an IP address."""
    target = _http2_target(workload, place.target)
    return target is not None and not target.is_fixed


def _server(workload: Workload, place: Place) -> Server | None:
    target = _http2_target(workload, place.target)
    if target is None:
        return None
    address = Address.parse(place.name)
    return Server(address, target.authority, _proxy(target), is_virtual=place.is_alone)


def _proxy(target: Target) -> Proxy | None:
    """The proxy to all servers of the target: its first name decides whether one is used."""
    return proxy_to(Address(target.service, ANY_PORT) if target.service else target.places[0])
