"""What placement is asked and what it answers: workers, rules, decisions, notices
(`app.placement.model.bin_packing`)."""

from __future__ import annotations

import msgspec

from app.kernel.load import DEFAULT_WORKER, Load

HIBERNATED = "hibernated: "  # begins the reason of whatever is done to a job of a sleeping workload
UNREAD = "?"  # the isolation group of a workload whose own cannot be read: no worker is of it
MOVES_PER_ROUND = 8  # planned moves at once: each stops one partition for a moment


class Member(msgspec.Struct, frozen=True):
    """A live worker: its id, whether it is leaving, what it has, and the isolation group it serves ("" = all
    jobs that have none)."""

    worker: str
    draining: bool = False
    capacity: Load = DEFAULT_WORKER
    group: str = ""


class PlacementDecision(msgspec.Struct, frozen=True, gc=False):
    """What is to happen with `job`: be owned by `worker`, or (release) be let go by it, to go to `target`."""

    job: str
    worker: str
    release: bool
    reason: str
    target: str = ""


class Notice(msgspec.Struct, frozen=True):
    """What placement could not do as it should: of which job, worker or group, why, and what helps."""

    kind: str
    subject: str
    message: str
    remedy: str


class PlacementRules(msgspec.Struct, frozen=True):
    """How full a worker may be, as shares of what it has, and how many moves there may be at once.

    Attributes:
        fill: up to here a worker is given jobs: what is above is spare, for peaks and for a lost neighbour's
            jobs.
        high: above this it is relieved.
        gain: so much better off than its giver, of a worker, must be who takes a job without having room.
        hot: a partition that takes this much of a worker is kept away from another such of its topic.
        moves: so many planned moves at once are always allowed, of one worker and in the region.
        worker_share, region_share: and as many as are this share of the worker's, the region's jobs.
        placements: so many jobs without a worker are given one at once, the largest first, and the others in
            the next round: a round stands in the leader's loop.
        even: a worker with this many jobs more than another of its group gives one up; 0: never.

    Raises:
        ValueError: the marks are not in order, or another figure is outside its range.
    """

    fill: float = 0.75
    high: float = 0.9
    gain: float = 0.1
    hot: float = 0.1
    moves: int = MOVES_PER_ROUND
    worker_share: float = 0.05
    region_share: float = 0.01
    placements: int = 25_000
    even: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fill < self.high <= 1:
            raise ValueError(
                f"placement marks: fill {self.fill} must be above 0 and below "
                f"high {self.high}, which is at most 1"
            )
        for name in ("gain", "hot", "worker_share", "region_share"):
            share = getattr(self, name)
            if not 0 < share <= 1:
                raise ValueError(f"placement: {name} {share} must be above 0 and at most 1")
        if self.moves < 1 or self.placements < 1 or self.even < 0 or self.even == 1:
            raise ValueError(
                f"placement: moves {self.moves} and placements {self.placements} must be at least 1, "
                f"even {self.even} 0 or at least 2 (a difference of one job is none)"
            )


class RoundPlan(msgspec.Struct, frozen=True):
    """One round: what to do, what could not be done, every able worker's level once all is done."""

    decisions: list[PlacementDecision]
    notices: list[Notice]
    levels: dict[str, float]


def name_of(job: str) -> str:
    """The workload, route or plan of a job; not by JobId.parse, which checks every character."""
    parts = job.split(":", 2)
    return parts[1] if len(parts) > 1 else job


def topic_of(job: str) -> str:
    """The topic that a job reads."""
    return job.rpartition(":")[0].rpartition(":")[2] or job
