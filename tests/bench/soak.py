"""Share of produced messages that are accounted for under ten minutes of random faults; and the workers'
memory.

SWITCHYARD_SOAK_S: seconds (600). SWITCHYARD_SOAK_SEED: the seed of faults and incidents (1).
"""

from __future__ import annotations

import os
import uuid
from typing import Any

from app.dev.demo.stage import DemoStage
from app.dev.yard import Yard
from tests.bench.run import Progress
from tests.system.soak.play import SoakRun
from tests.system.soak.report import report

FOR_S, SEED = 600.0, 1


def run(progress: Progress) -> dict[str, Any]:
    """One soak. Raises RuntimeError, with the report, when a message is lost or anything does not balance."""
    for_s = float(os.environ.get("SWITCHYARD_SOAK_S") or FOR_S)
    seed = int(os.environ.get("SWITCHYARD_SOAK_SEED") or SEED)
    with Yard(regions=1) as yard, DemoStage(yard) as stage:
        stage.settings["worker"] = {"grace": "10s"}
        outcome = SoakRun(stage, seed, for_s, f"soak-{uuid.uuid4().hex[:8]}", say=progress).run()
    text = report(outcome)
    for line in text.splitlines():
        progress(line)
    account = outcome.account
    if not account.sound or outcome.lag or outcome.troubles:
        raise RuntimeError(text)
    return {
        "value": account.produced - len(account.lost), "unit": "messages accounted for",
        "peer": "messages produced", "peer_value": account.produced,
        "setup": {"seconds": for_s, "seed": seed, "incidents": len(outcome.happened)},
        "rows": [
            {"bench": "soak, repetitions", "value": account.duplicates, "unit": "messages",
             "peer": "the bound: deliveries that an incident hit", "peer_value": account.allowed},
            *_memory(outcome.memory),
        ],
    }  # fmt: skip


def _memory(lives: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """Each worker's memory at the end of its life, against a third of the way."""
    return [
        {"bench": f"soak, memory of {name}", "value": round(life[-1][1], 1), "unit": "MB",
         "peer": f"{life[-1][0] - life[len(life) // 3][0]:.0f} s before",
         "peer_value": round(life[len(life) // 3][1], 1)}
        for name, life in lives.items()
    ]  # fmt: skip
