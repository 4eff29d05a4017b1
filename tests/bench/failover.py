"""p99 seconds from the command to the first message of every partition after a whole region was killed.

It also counts messages that are read again. The peer is MirrorMaker 2 with translated group offsets.

Ours: two regions with a worker each. The region that stays runs `failover plan --force` and then the command,
`execute`; later the role goes back in order. The peer: two clusters, and a consumer group that continues in
the other one where MirrorMaker 2 has put it (`failing_over.peer`). Both have the same traffic, by producers
that fail over, and 4 partitions. The killed region comes back; messages not delivered by then are lost. A
lost message of ours fails the bench.
"""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

from app.dev.yard.java import find_java
from tests.bench import mirror_maker
from tests.bench.failing_over import ours, peer
from tests.bench.failing_over.round import PARTITIONS, PER_SECOND, Round
from tests.bench.run import Progress, alternate

PEER = f"MirrorMaker 2 {mirror_maker.VERSION}"


def run(progress: Progress) -> dict[str, Any]:
    """Three rounds each."""
    java = find_java()
    jars = mirror_maker.class_path()
    rounds: dict[str, list[Round]] = {"ours": [], "back": [], "tuned": [], "default": []}

    def keep(name: str, one: Round) -> float:
        rounds[name].append(one)
        progress(
            f"{name}: {one.again:,} read again (the oldest {one.oldest_s:.1f} s before), {one.lost:,} lost "
            f"of {one.messages:,}, first messages after {max(one.first_s):.2f} s "
            f"(plan {one.plan_s:.2f} s) { {phase: round(at_s, 2) for phase, at_s in one.phases.items()} }"
        )
        return max(one.first_s)

    def our_round() -> float:
        failover_round, failback_round = ours.measure()
        keep("back", failback_round)
        return keep("ours", failover_round)

    def peer_rounds() -> float:
        keep("default", peer.measure("default", java, jars))
        return keep("tuned", peer.measure("tuned", java, jars))

    alternate(our_round, peer_rounds, progress=progress)
    lost = sum(one.lost for name in ("ours", "back") for one in rounds[name])
    if lost:
        raise RuntimeError(f"{lost} messages were lost or delivered by a replaced role")
    p99, p50, again = ({name: figure(rounds[name]) for name in rounds} for figure in (_p99, _p50, _again))
    versus = {"tuned": "tuned", "default": "default settings"}
    return {
        "value": round(p99["ours"], 3), "unit": "s",
        "peer": f"{PEER}, tuned", "peer_value": round(p99["tuned"], 3),
        "setup": {
            "messages/s": PER_SECOND, "partitions": PARTITIONS, "workers": "one a region",
            "rounds": len(rounds["ours"]), "tuned": peer.TUNED, "default": peer.DEFAULT,
        },
        "phases_s": {
            "plan, before the command": round(median(one.plan_s for one in rounds["ours"]), 3),
        }
        | {
            phase: round(median(one.phases[phase] for one in rounds["ours"]), 3)
            for phase in rounds["ours"][0].phases
        },
        "rows": [
            _row("failover, p50", "s", p50["ours"], "tuned", p50["tuned"]),
            _row("failover, default", "s", p99["ours"], versus["default"], p99["default"]),
            _row("failback, p99", "s", p99["back"], "tuned", p99["tuned"]),
            *(
                _row(f"{name}, read again", "messages", again[side], settings, again[theirs])
                for name, side in (("failover", "ours"), ("failback", "back"))
                for theirs, settings in versus.items()
            ),
            *(
                _row("failover, lost", "messages", lost, settings, sum(one.lost for one in rounds[theirs]))
                for theirs, settings in versus.items()
            ),
        ],
    }  # fmt: skip


def _row(name: str, unit: str, value: float, settings: str, peer_value: float) -> dict[str, Any]:
    return {
        "bench": name, "value": round(value, 3), "unit": unit, "peer": f"{PEER}, {settings}",
        "peer_value": round(peer_value, 3), "ratio": round(value / peer_value, 4) if peer_value else None,
    }  # fmt: skip


def _firsts(rounds: list[Round]) -> list[float]:
    return [first_s for one in rounds for first_s in one.first_s]


def _p99(rounds: list[Round]) -> float:
    return quantiles(_firsts(rounds), n=100, method="inclusive")[98]


def _p50(rounds: list[Round]) -> float:
    return median(_firsts(rounds))


def _again(rounds: list[Round]) -> float:
    return median(one.again for one in rounds)
