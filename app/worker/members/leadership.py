"""Whether this worker may act, and whether it leads its region."""

from __future__ import annotations

import asyncio
import time

from app.controllog.log import ControlLog
from app.kernel.lease import Lease


class Leadership:
    """A worker's part in its region. The control log names the leader; the worker's lease lets it act.

    Attributes:
        worker, lease: This worker's id, and its lease.
        round_wanted: Set: the leader begins its next round at once (`app.placement.leader`).
    """

    def __init__(self, worker: str, control: ControlLog, lease: Lease) -> None:
        self.worker = worker
        self.lease = lease
        self.round_wanted = asyncio.Event()
        self._control = control

    def leads(self) -> bool:
        """Whether this worker's claim is current."""
        return self._control.view.leader == self.worker

    def may_act(self) -> bool:
        """Whether the lease holds."""
        return self.lease.holds(time.monotonic())

    def may_lead(self) -> bool:
        """Whether it leads, and may act."""
        return self.leads() and self.may_act()
