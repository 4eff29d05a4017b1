"""Checks that a definition's schemas can be used, and names the field of a problem.

The check reads the files of its own process; workers need them at the same paths below their folders of
schemas.
"""

from __future__ import annotations

from app.audit.definition import AuditPlan
from app.audit.pump.counting_spec import open_times
from app.config.definition_base import Definition
from app.config.problems import ConfigProblem, Document, InvalidConfiguration
from app.dispatch.definition import Workload
from app.dispatch.jobs.interceptor_chain import payload_codec
from app.payload.event_time.instant import UnusableField
from app.payload.schema_files import DescriptorError
from app.payload.schema_loader import SchemaLoader
from app.payload.schema_registry import import_doubts


async def check_schemas(definition: Definition, schemas: SchemaLoader, document: Document) -> list[str]:
    """Opens the schemas of a workload or audit plan; returns warnings.

    Raises:
        InvalidConfiguration: They cannot be used.
    """
    descriptor = None
    try:
        match definition:
            case Workload():
                await payload_codec(definition, schemas)
                if definition.spec.payload is not None and definition.spec.payload.protobuf is not None:
                    descriptor = definition.spec.payload.protobuf.descriptor
            case AuditPlan():
                await open_times(definition, schemas)
                descriptor = definition.spec.timestamp.descriptor
        return [] if descriptor is None else await schemas.run(import_doubts, descriptor, schemas.files)
    except DescriptorError as error:
        place = ("payload", "protobuf") if isinstance(definition, Workload) else ("timestamp",)
        message = f"{error.source}: {error.problem}"
        raise _invalid(document, (*place, error.field), message, error.remedy) from None
    except UnusableField as error:
        assert isinstance(definition, AuditPlan)
        field = "schema" if definition.spec.timestamp.source == "avro" else "field"
        message = f"{error.field}: {error.problem}"
        raise _invalid(document, ("timestamp", field), message, error.remedy) from None


def _invalid(
    document: Document, within_spec: tuple[str, ...], message: str, remedy: str
) -> InvalidConfiguration:
    path = ("spec", *within_spec)
    line, column = document.position(path)
    return InvalidConfiguration(
        [ConfigProblem(message, remedy, ".".join(path), "", document.file, line, column)]
    )
