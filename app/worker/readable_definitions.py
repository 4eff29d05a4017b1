"""The workloads and routes of the control log, parsed. Failover, regions and catalogs read them from here."""

from __future__ import annotations

from app.controllog.log import ControlLog
from app.dispatch.topics.readable_workloads import ReadableWorkloads
from app.failover.topology import Layout
from app.kernel.incidents import ReportIncident
from app.replicate.topics.readable_routes import ReadableRoutes


class ReadableDefinitions:
    """The definitions that this version can read. `layout`: the regions and their clusters."""

    def __init__(
        self, control: ControlLog, report_incident: ReportIncident, layout: Layout | None = None
    ) -> None:
        self.layout = layout
        self.workloads = ReadableWorkloads(control, report_incident, layout)
        self.routes = ReadableRoutes(control, report_incident)
