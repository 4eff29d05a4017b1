"""Makes a workload's interceptors: first those that the operator configured, then the payload's."""

from __future__ import annotations

from collections.abc import Sequence

from app.dispatch.definition import Workload
from app.payload.codec import Framing, PayloadCodec, open_codec
from app.payload.interceptors import Interceptor, InterceptorChain
from app.payload.protobuf_interceptor import Deliver, Invalid, ProtobufInterceptor, workload_chain
from app.payload.schema_loader import SchemaLoader

FRAMINGS = {"raw": Framing.NONE, "confluent": Framing.CONFLUENT}


async def payload_codec(workload: Workload, schemas: SchemaLoader) -> PayloadCodec | None:
    """The codec of the workload's payload; None: its definition names none.

    Raises:
        app.payload.schema_files.DescriptorError: The descriptors cannot be used; the text has the remedy.
    """
    payload = workload.spec.payload
    if payload is None or payload.protobuf is None:
        return None
    protobuf = payload.protobuf
    return await schemas.run(
        open_codec, protobuf.descriptor, protobuf.message, FRAMINGS[protobuf.framing], schemas.files
    )


async def make_chain(
    workload: Workload, operators: Sequence[tuple[str, Interceptor]], schemas: SchemaLoader
) -> InterceptorChain | None:
    """The workload's interceptors; None: it has none.

    Raises:
        app.payload.schema_files.DescriptorError: See `payload_codec`.
    """
    codec = await payload_codec(workload, schemas)
    payload = workload.spec.payload
    if codec is None or payload is None or payload.protobuf is None:
        return workload_chain(operators, None)
    wanted = payload.protobuf
    interceptor = None
    unframes = wanted.deliver == "bytes" and wanted.framing == "confluent"
    if unframes or wanted.deliver == "json" or wanted.invalid == "dlq":
        interceptor = ProtobufInterceptor(
            codec, deliver=Deliver(wanted.deliver), invalid=Invalid(wanted.invalid)
        )
    return workload_chain(operators, interceptor)
