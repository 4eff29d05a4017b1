"""The kind of definition `Alert`: its checks."""

from __future__ import annotations

from collections.abc import Iterator

from app.alerts.definition import PREFIX, AlertDefinition
from app.alerts.definition_checks import alert_checks
from app.config.definition_kind import DefinitionKind, KnownPlaces
from app.config.problems import ConfigProblem, Document


def _check(document: Document, alert: AlertDefinition | None, _: KnownPlaces) -> Iterator[ConfigProblem]:
    return alert_checks(document, alert)


ALERT = DefinitionKind("Alert", AlertDefinition, _check, "/alerts", list_api="/alert-rules", prefix=PREFIX)
