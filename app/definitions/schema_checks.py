"""Checks that a definition's schemas can be used, and names the field of a problem.

The check reads the files of its own process; workers need them at the same paths below their folders of
schemas.
"""

from __future__ import annotations

from app.audit.definition import AuditPlan
from app.audit.pump.counting_spec import open_times
from app.config.definition_base import Definition
from app.config.problems import ConfigProblem, Document
from app.dispatch.definition import Workload
from app.dispatch.jobs.interceptor_chain import payload_codec
from app.payload.event_time.instant import UnusableField
from app.payload.schema_files import DescriptorError
from app.payload.schema_loader import SchemaLoader


async def schema_problem(
    definition: Definition, schemas: SchemaLoader, document: Document
) -> ConfigProblem | None:
    """The problem with the schemas of a workload or audit plan; None: there is none."""
    try:
        match definition:
            case Workload():
                await payload_codec(definition, schemas)
            case AuditPlan():
                await open_times(definition, schemas)
    except DescriptorError as error:
        place = ("payload", "protobuf") if isinstance(definition, Workload) else ("timestamp",)
        return _problem(document, (*place, error.field), f"{error.source}: {error.problem}", error.remedy)
    except UnusableField as error:
        assert isinstance(definition, AuditPlan)
        field = "schema" if definition.spec.timestamp.source == "avro" else "field"
        return _problem(document, ("timestamp", field), f"{error.field}: {error.problem}", error.remedy)
    return None


def _problem(document: Document, within_spec: tuple[str, ...], message: str, remedy: str) -> ConfigProblem:
    path = ("spec", *within_spec)
    line, column = document.position(path)
    return ConfigProblem(message, remedy, ".".join(path), "", document.file, line, column)
