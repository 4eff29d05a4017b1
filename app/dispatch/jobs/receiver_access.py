"""Whether a workload may reach its receiver from this worker."""

from __future__ import annotations

from app.config.receiver_rules import METADATA_REMEDY, ReceiverRules
from app.dispatch.definition import Workload
from app.dispatch.model.header_filter import HeaderFilter
from app.grpc_client.credentials import Credentials


def check_access(workload: Workload, credentials: Credentials, rules: ReceiverRules) -> None:
    """Raises ValueError: its credentials or tokens are not there or for others, or its metadata is not
    allowed; with the remedy."""
    group = workload.metadata.group
    if (name := workload.credentials()) is not None:
        credentials.check(name, group)
    for name in sorted(workload.tokens()):
        credentials.tokens.check(name, group)
    allowed = HeaderFilter(rules.allow, rules.deny)
    for name in workload.spec.target.metadata:
        if not allowed.passes(name):
            raise ValueError(f"this worker allows no metadata {name!r}; {METADATA_REMEDY}")
