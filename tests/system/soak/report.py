"""The outcome of a soak as text."""

from __future__ import annotations

from collections.abc import Iterator

from tests.system.soak.plan import Kind
from tests.system.soak.play import Outcome

SHOWN = 20


def report(outcome: Outcome) -> str:
    """Figures first, then everything that does not balance; the seed repeats the soak."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    account = outcome.account
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(account.causes.items()))
    yield f"soak, SWITCHYARD_SOAK_SEED={outcome.seed}: {'sound' if account.sound else 'NOT sound'}"
    yield (
        f"  {account.produced:,} produced, {account.taken:,} taken, {account.skipped:,} skipped, "
        f"{account.dead:,} in the DLQ, {len(account.lost):,} lost; {outcome.took_s:.0f} s in all"
    )
    yield f"  {account.duplicates:,} repetitions of at most {account.allowed:,} ({causes or 'none'})"
    stalls = [one.to_ms - one.from_ms for one in outcome.happened if one.kind is Kind.WORKER_STALL]
    if stalls:
        yield f"  workers did not answer {len(stalls)} times, for {max(stalls) / 1000:.1f} s at most"
    for name, life in outcome.memory.items():
        third = len(life) // 3
        yield (
            f"  {name}: {life[third][1]:.0f} MB at {life[third][0]:.0f} s, "
            f"{life[-1][1]:.0f} MB at {life[-1][0]:.0f} s"
        )
    yield from (f"  {kind}" for kind in _shown(outcome.stories, 2 * SHOWN))
    yield from (f"  order: {text}" for text in _shown(account.disordered))
    yield from (f"  wrong: {text}" for text in _shown(account.wrong))
    yield from (f"  trouble: {text}" for text in outcome.troubles)
    if outcome.lag:
        yield f"  not committed: {outcome.lag}"
    if not account.sound:
        began_ms = min((one.from_ms for one in outcome.happened), default=0.0)
        for one in outcome.happened:
            yield (
                f"  {one.kind} {'' if one.receiver is None else one.receiver}: {one.from_ms - began_ms:.0f} "
                f"to {one.to_ms - began_ms:.0f} ms after the first incident at {began_ms:.0f}"
            )


def _shown(texts: tuple[str, ...], most: int = SHOWN) -> Iterator[str]:
    yield from texts[:most]
    if len(texts) > most:
        yield f"... and {len(texts) - most} more"
