"""Types of a placement plan: workers, rules, decisions, notices. `round.py` makes the plan."""

from __future__ import annotations

import msgspec

from app.kernel.load import DEFAULT_WORKER, Load

HIBERNATED = "hibernated: "  # begins the reasons of decisions about hibernated workloads
UNREAD = "?"  # the group of a workload whose definition cannot be read; no worker has it
MOVES_PER_ROUND = 8  # planned moves at once; each stops one partition for a moment


class Member(msgspec.Struct, frozen=True):
    """A live worker: its id, whether it is draining, its capacity, and its isolation group ("": it takes
    jobs without a group)."""

    worker: str
    draining: bool = False
    capacity: Load = DEFAULT_WORKER
    group: str = ""


class PlacementDecision(msgspec.Struct, frozen=True, gc=False):
    """`worker` gets `job`, or (release) hands it over so that `target` gets it."""

    job: str
    worker: str
    release: bool
    reason: str
    target: str = ""


class Notice(msgspec.Struct, frozen=True):
    """A problem that placement could not solve: its subject (job, worker or group), the cause, and the
    remedy."""

    kind: str
    subject: str
    message: str
    remedy: str


class PlacementRules(msgspec.Struct, frozen=True):
    """How full workers may be, as shares of their capacity, and how many moves may run at once.

    Attributes:
        fill: A worker gets jobs up to this level. The rest is spare, for peaks and for a lost neighbour's
            jobs.
        high: Above this level a worker gives jobs away.
        gain: A worker without room takes a job only if it ends this much below the giver's level.
        hot: A partition that takes this share of a worker is kept apart from other hot ones of its topic.
        moves: This many planned moves at once are always allowed, for a worker and for the region.
        worker_share, region_share: As many moves as this share of the worker's or region's jobs are
            allowed, too.
        placements: The most jobs that a round gives a first worker, the largest first. A round runs
            in the leader's event loop.
        even: A worker with this many jobs more than another of its group gives one away; 0: never.

    Raises:
        ValueError: The marks are not in order, or a figure is outside its range.
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
    """The plan of a round: decisions, notices, and the levels of all usable workers afterwards."""

    decisions: list[PlacementDecision]
    notices: list[Notice]
    levels: dict[str, float]


def name_of(job: str) -> str:
    """The name of the job's workload, route or plan; faster than JobId.parse, which checks every
    character."""
    parts = job.split(":", 2)
    return parts[1] if len(parts) > 1 else job


def topic_of(job: str) -> str:
    """The topic that a job reads."""
    return job.rpartition(":")[0].rpartition(":")[2] or job
