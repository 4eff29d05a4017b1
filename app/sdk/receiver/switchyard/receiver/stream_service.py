"""The gRPC method of the stream contract: finds a stream's handler. `stream_session` serves the stream."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from switchyard.receiver.admission import AdmissionWindow, TaskGate, Violation
from switchyard.receiver.stream_session import EOF, Session
from switchyard.receiver.unary_service import HandlerRoute
from switchyard.v1.receiver_pb2 import DeliverRequest

METHOD = "/switchyard.v1.Receiver/Deliver"


class StreamSide:
    """Accepts streams, and counts those in progress."""

    def __init__(
        self, routes: dict[tuple[str, str], HandlerRoute], window: AdmissionWindow, gate: TaskGate
    ) -> None:
        self.stopping = asyncio.Event()
        self.active = 0
        self._routes = routes  # by group and topic
        self._window = window
        self._gate = gate
        self.handler = grpc.stream_stream_rpc_method_handler(self._deliver)

    async def _deliver(self, _: Any, context: Any) -> None:
        self.active += 1
        try:
            await self._serve(context)
        except (DecodeError, Violation) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self.active -= 1

    async def _serve(self, context: Any) -> None:
        data = await context.read()
        if data is EOF:
            return
        request = DeliverRequest.FromString(data)
        if not request.HasField("open"):
            raise Violation("the first request must have `open`")
        opened = request.open
        route = self._routes.get((opened.group, opened.topic))
        if route is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no handler for {opened.group}/{opened.topic}"
            )
            return
        if not self.stopping.is_set():
            await Session(context, route, opened, self._window, self._gate).run(
                request, len(data), self.stopping
            )
        if self.stopping.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the receiver is shutting down")
