"""Makes the clients of a workload's receiver, by the transport of its definition, and looks its name up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from app.dispatch.definition import Workload
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.endpoint import Place
from app.dispatch.push.fixed_metadata import FixedMetadata
from app.dispatch.push.grpc_transport import (
    GrpcHealthClient,
    GrpcServer,
    GrpcStreamChannel,
    GrpcTls,
    GrpcUnaryTarget,
)
from app.dispatch.push.health import HealthClient
from app.dispatch.push.http2_transport import (
    Http2HealthClient,
    Http2StreamChannel,
    Http2UnaryTarget,
    Server,
    proxy_to,
)
from app.dispatch.push.receiver import Follow
from app.dispatch.push.stream.client import METHOD, Sender, StreamTarget
from app.dispatch.push.transport import StreamChannel, UnaryTarget
from app.grpc_client.address import Address, Proxy, ascii_host
from app.grpc_client.connection import Keepalive
from app.grpc_client.credentials import Credentials
from app.grpc_client.resolver import Resolver
from app.grpc_client.target import Target

SOCKETS = {"unix", "unix-abstract"}
ANY_PORT = 1  # exemptions from a proxy regard hosts only


class TargetClients:
    """Makes clients that name this worker to the receiver.

    Args:
        zone: Where the worker runs; "": not known.
        credentials: For TLS and metadata; without them workloads have none.
    """

    def __init__(self, worker: str, zone: str = "", credentials: Credentials | None = None) -> None:
        self._worker = worker
        self._zone = zone
        self._credentials = credentials or Credentials()

    def endpoints(self, workload: Workload, address: str, follow: Follow) -> EndpointNames:
        """See `ReceiverClients.endpoints`."""
        target = workload.spec.target
        local = target.zones.get(self._zone, "") if address == target.address else ""
        return EndpointNames(workload, address, local, follow)

    def unary(self, workload: Workload, place: Place) -> UnaryTarget:
        server = self._server(workload, place)
        if server is None:
            return GrpcUnaryTarget(self._grpc_server(workload, place), workload.method())
        return Http2UnaryTarget(server, workload.method())

    def stream(
        self,
        workload: Workload,
        place: Place,
        on_room: Callable[[], None],
        on_lost: Callable[[CallResult, bool], None],
    ) -> StreamTarget:
        server = self._server(workload, place)

        def open_channel() -> StreamChannel:
            if server is None:
                return GrpcStreamChannel(self._grpc_server(workload, place), METHOD)
            return Http2StreamChannel(server, METHOD)

        return StreamTarget(
            open_channel,
            Sender(workload.metadata.group, workload.metadata.topic, self._worker),
            timeout_s=workload.spec.target.timeout,
            on_room=on_room,
            on_lost=on_lost,
            streams=1 if server is None else server.connections,
            max_age_s=0.0 if server is None else server.max_age_s,
        )

    def health(self, workload: Workload, place: Place) -> HealthClient:
        server = self._server(workload, place)
        if server is None:
            return GrpcHealthClient(self._grpc_server(workload, place))
        return Http2HealthClient(server)

    def _grpc_server(self, workload: Workload, place: Place) -> GrpcServer:
        """The place for grpcio."""
        keepalive = workload.spec.target.keepalive
        return GrpcServer(
            place.name, self._grpc_tls(workload, place), self._metadata(workload), keepalive.time,
            keepalive.timeout,
        )  # fmt: skip

    def _grpc_tls(self, workload: Workload, place: Place) -> GrpcTls | None:
        tls = workload.spec.target.tls
        if tls is None:
            return None
        # For a socket, grpcio would compare the path.
        is_socket = place.name.partition(":")[0].lower() in SOCKETS
        name = ascii_host(tls.server_name or ("localhost" if is_socket else ""))
        return GrpcTls(self._credentials.pem(tls.credentials_name), name)

    def _metadata(self, workload: Workload) -> FixedMetadata | None:
        sources = workload.metadata_sources()
        return FixedMetadata(sources, self._credentials.tokens) if sources else None

    def _server(self, workload: Workload, place: Place) -> Server | None:
        """The place for our own client; None: it is for grpcio."""
        target = _http2_target(workload, place.target)
        if target is None:
            return None
        spec = workload.spec.target
        server = Server(
            Address.parse(place.name), target.authority, _proxy(target),
            connections=-(-spec.connections // place.total), metadata=self._metadata(workload),
            keepalive=Keepalive(spec.keepalive.time, spec.keepalive.timeout),
        )  # fmt: skip
        if spec.tls is not None:
            context = partial(self._credentials.context, spec.tls.credentials_name)
            # A zone's endpoint may be found by either name first; certificates need only that of all.
            if place.target in spec.zones.values():
                target = Target.parse(spec.address)
            server = replace(server, tls=context, server_name=spec.tls.server_name or target.name)
        if place.total <= spec.connections:
            server = replace(server, max_age_s=spec.max_connection_age)
        return server


class EndpointNames:
    """Looks up the endpoints of a receiver.

    While a zone has no answer, as when it has no instance any more, its former endpoints count only as far as
    the address of all has them.

    Args:
        address: Of all; `local`: of those in this worker's zone, "" if that is not known.
        follow: Gets the endpoints: now, and when a look-up finds others.
    """

    def __init__(self, workload: Workload, address: str, local: str, follow: Follow) -> None:
        self._address = address
        self._local = local
        self._follow = follow
        self._names: dict[str, list[str]] = {}  # by address
        self._resolvers: dict[str, Resolver] = {}
        for one in dict.fromkeys([address, local or address]):
            self._begin(workload, one)

    def _begin(self, workload: Workload, address: str) -> None:
        target = _http2_target(workload, address)
        if target is None:
            self._found(address, [address])  # grpcio resolves the name, and balances
        elif target.is_fixed or (not target.service and _proxy(target) is not None):
            self._found(address, map(str, target.places))  # a proxy resolves names, but no SRV records
        else:
            self._resolvers[address] = Resolver(
                target, lambda found: self._found(address, map(str, found)), on_fault=self._tell
            )

    def _found(self, address: str, names: Iterable[str]) -> None:
        self._names[address] = list(dict.fromkeys(names))
        self._tell()

    def _tell(self) -> None:
        every, local = self._names.get(self._address), self._names.get(self._local, [])
        if every is not None and self._is_failing(self._local):
            local = [name for name in local if name in every]
        every = every or []
        places = {name: Place(self._address, name, len(every), name in local) for name in every}
        for name in local:
            places.setdefault(name, Place(self._local, name, len(local), is_local=True))
        if places:
            self._follow(list(places.values()))

    def _is_failing(self, address: str) -> bool:
        resolver = self._resolvers.get(address)
        return resolver is not None and resolver.error != ""

    @property
    def error(self) -> str:
        """Why a look-up failed; "": none did."""
        return "; ".join(resolver.error for resolver in self._resolvers.values() if resolver.error)

    def ask(self) -> None:
        """Looks up soon."""
        for resolver in self._resolvers.values():
            resolver.ask()

    async def close(self) -> None:
        await asyncio.gather(*(resolver.close() for resolver in self._resolvers.values()))


def _http2_target(workload: Workload, address: str) -> Target | None:
    """What our own client makes of the address; None: it is for grpcio, as one that names a DNS server."""
    if workload.spec.target.transport != "http2":
        return None
    try:
        return Target.parse(address)
    except ValueError:
        return None


def _proxy(target: Target) -> Proxy | None:
    """The proxy to all servers of the target: its first name decides whether one is used."""
    return proxy_to(Address(target.service, ANY_PORT) if target.service else target.places[0])
