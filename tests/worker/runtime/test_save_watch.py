"""A worker that saves nothing ends if a restart or another worker helps; else it reports and continues."""

from __future__ import annotations

import time

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from app.worker.runtime import save_watch as module
from app.worker.runtime.save_watch import SaveWatch
from app.worker.tracker.write_health import ProbeFailure, WriteHealth

REFUSED = ProbeFailure(3, "[Error 10] MessageSizeTooLargeError", is_refusal=True)
STUCK = ProbeFailure(3, "[Error 19] NotEnoughReplicasError", is_refusal=False)


class Rig:
    """A watch over a partition with no write since `ago_s`; `words` are the incidents and "ended"."""

    def __init__(self, met: ProbeFailure | None, *, ago_s: float = 31.0, others_save: bool = True) -> None:
        self.words: list[str] = []
        self.writes = WriteHealth()
        self.writes.began(3, time.monotonic() - ago_s)
        self.met = met
        self.others_save = others_save
        self.holds = True
        self.heals_meanwhile = False
        self.watch = SaveWatch(
            "trackers", self.writes, lambda: self.holds, self._probe, lambda: self.others_save, self._report,
            lambda: self.words.append("ended"),
        )  # fmt: skip

    async def _probe(self) -> ProbeFailure | None:
        if self.heals_meanwhile:
            self.writes.ended(3, time.monotonic())
        return self.met

    async def _report(self, kind: str, message: str, remedy: str, _: object) -> None:
        self.words.append(f"{kind}: {message}; {remedy}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFIRM_S", 0.01)


async def test_a_worker_ends_when_only_a_new_connection_can_write() -> None:
    rig = Rig(None, others_save=False)
    await rig.watch.look()
    incident, ended = rig.words
    assert ended == "ended"
    assert incident.startswith("worker-ended: ")
    assert "partition 3 of trackers" in incident


async def test_a_worker_continues_when_its_topic_heals_during_the_probe() -> None:
    rig = Rig(None)
    rig.heals_meanwhile = True
    await rig.watch.look()
    assert rig.words == []


async def test_a_refused_worker_ends_when_other_workers_can_save() -> None:
    rig = Rig(REFUSED, ago_s=46.0)
    await rig.watch.look()
    incident, ended = rig.words
    assert (ended, "MessageSizeTooLarge" in incident, "max.message.bytes of trackers" in incident) == (
        "ended",
        True,
        True,
    )


async def test_a_refused_worker_waits_until_the_others_had_time_to_say_that_they_cannot_save() -> None:
    rig = Rig(REFUSED)
    await rig.watch.look()
    assert rig.words == []
    rig.others_save = False
    await rig.watch.look()
    (incident,) = rig.words
    assert incident.startswith("unsaved: ")


@pytest.mark.parametrize(("met", "others_save"), [(REFUSED, False), (STUCK, True), (STUCK, False)])
async def test_a_worker_that_no_restart_helps_reports_once_and_continues(
    met: ProbeFailure, others_save: bool
) -> None:
    rig = Rig(met, others_save=others_save)
    await rig.watch.look()
    await rig.watch.look()
    (incident,) = rig.words
    assert incident.startswith("unsaved: ")
    assert met.why in incident
    rig.writes.ended(3, time.monotonic())
    await rig.watch.look()
    assert rig.watch.unsaved(time.monotonic()) is None
    rig.writes.began(3, time.monotonic() - 31.0)
    await rig.watch.look()
    assert len(rig.words) == 2, "the next failure is reported again"


async def test_short_troubles_and_outages_of_the_cluster_are_not_reported() -> None:
    short = Rig(REFUSED, ago_s=20.0)
    await short.watch.look()
    away = Rig(REFUSED)
    away.writes.ended(3, time.monotonic(), MessageSizeTooLargeError())
    away.holds = False
    await away.watch.look()
    away.holds = True
    await away.watch.look()
    assert short.words == away.words == []
