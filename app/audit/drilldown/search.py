"""A drill-down, from question to answer: names the records of a window that did not reach the next tier.

    Question --SideFinder--> Sides --Scan--> places --name_findings, apply_exclusions--> SearchResult

The logs are read first within the offsets that their timestamps give for the window. If that does not explain
the difference that the audit counted, they are read to their ends.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from app.audit.drilldown.findings import (
    Finding,
    FindingKind,
    LossExclusions,
    ObservedRecord,
    apply_exclusions,
    counts,
    name_findings,
)
from app.audit.drilldown.id_sums import MOST, difference_of
from app.audit.drilldown.prints import EventTimeWindow
from app.audit.drilldown.scan import LogsChanged, Scan, Scanned, UnreadRange
from app.audit.drilldown.sides import Question, SideFinder, Sides
from app.kernel.clock import iso
from app.kernel.json_types import JsonObject
from switchyard.audit.model.fingerprint import Fingerprint, ids_of

if TYPE_CHECKING:
    from app.worker.runtime.service import Runtime

MOST_NAMED = 10_000
TRIES = 2


class AuditedDifference(NamedTuple):
    """The difference that the audit counted, once it is final. `surplus`: how many records more upstream has.
    `ids`: the difference of the sums of ids (`app.audit.drilldown.id_sums`); None: some record has no id."""

    surplus: int
    ids: Fingerprint | None = None


ReportProgress = Callable[[JsonObject], None]


class SearchResult(NamedTuple):
    """The fates of the window's records.

    Attributes:
        findings: At most `MOST_NAMED`.
        counts: Kind -> number of findings, including those above that limit.
        share: One of this many differing prints was searched; 1: all of them.
        estimate: About how many records differ.
        unread: Offsets that could not be read.
        notes: Texts for the reader of the answer.
        is_known: False: the sums of ids could not name the records.
    """

    question: Question
    window: EventTimeWindow
    findings: list[Finding]
    counts: dict[str, int]
    share: int
    estimate: int
    unread: list[UnreadRange]
    notes: list[str]
    sides: Sides
    is_known: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether all differing records are named."""
        return self.is_known and self.share == 1 and sum(self.counts.values()) == len(self.findings)


async def drill(
    runtime: Runtime,
    question: Question,
    report_progress: ReportProgress,
    *,
    lateness_ms: int = 0,
    difference: AuditedDifference | None = None,
) -> SearchResult:
    """Answers a question. `lateness_ms`: how late records of the window may have been written. `difference`
    None: the audit's is not final yet.

    Raises:
        NotReadable: No log answers it.
        ClusterUnreachable, KafkaError: Some logs cannot be read now.
        LogsChanged: The logs lost records meanwhile, at each of `TRIES`.
    """
    surplus = None if difference is None else difference.surplus
    for number in range(TRIES):
        sides = await SideFinder(runtime, question, lateness_ms).find()
        if not sides.upstream or not sides.downstream:
            return await _by_sums(question, sides, Scan(sides.parts, report_progress), difference)
        try:
            scanned = await Scan(sides.parts, report_progress).run()
            if surplus is not None and not _explains(scanned, surplus):
                sides = sides._replace(parts=[part._replace(end=part.log_end) for part in sides.parts])
                scanned = await Scan(sides.parts, report_progress).run()
            break
        except LogsChanged:
            if number == TRIES - 1:
                raise
    return await asyncio.to_thread(_answer, question, sides, scanned, surplus)


async def _by_sums(
    question: Question, sides: Sides, scan: Scan, difference: AuditedDifference | None
) -> SearchResult:
    """The answer if a tier has no log: by the sums of ids."""
    findings: list[Finding] = []
    why, difference_rows = "", None
    if difference is None:
        why = "the audit has not closed the window at both tiers yet; ask again once it has"
    elif difference.ids is None:
        why = "some records that the audit counted have no id, so the records that differ cannot be named"
    elif difference.surplus or difference.ids != Fingerprint():
        names = await scan.ids()
        difference_rows = (
            None if names is None else difference_of(difference.ids, difference.surplus, ids_of(names))
        )
        if difference_rows is None or names is None:
            why = (
                f"a tier has no log, so only sums of ids can name records, {MOST} at most; here more differ, "
                "or ids that the other tier never had"
            )
        else:
            missing, doubled = ([names[row] for row in rows] for rows in difference_rows)
            seen = {record.id: record for record in await scan.places_of({*missing, *doubled})}
            findings = [Finding(FindingKind.MISSING, seen[name]) for name in missing if name in seen]
            findings += [Finding(FindingKind.DOUBLED, seen[name]) for name in doubled if name in seen]
    differs = 0 if difference is None else abs(difference.surplus)
    return SearchResult(
        question, sides.window, findings, counts(findings), 1, max(differs, len(findings)), list(scan.unread),
        sides.notes + [why] * bool(why), sides, not why,
    )  # fmt: skip


def _explains(scanned: Scanned, surplus: int) -> bool:
    return (
        len(scanned.upstream) - len(scanned.downstream) + sum(scanned.alike) == surplus or scanned.share > 1
    )


def _answer(question: Question, sides: Sides, scanned: Scanned, surplus: int | None) -> SearchResult:
    findings = apply_exclusions(name_findings(scanned.upstream, scanned.downstream), _bounds(sides, scanned))
    notes = list(sides.notes)
    found = counts(findings)
    if scanned.share > 1:
        notes.append(
            f"about {scanned.estimate} records differ, too many to name at once, so one in {scanned.share} "
            "is named; copy these again, then ask again"
        )
    if scanned.alike:
        notes.append(
            f"{sum(map(abs, scanned.alike))} records are not named: thousands have the same contents"
        )
    if surplus is not None and not _explains(scanned, surplus):
        balance = len(scanned.upstream) - len(scanned.downstream)
        notes.append(
            f"the audit counted {surplus} more records upstream than downstream, but the logs show "
            f"{balance} more: records were deleted or arrived since"
        )
    return SearchResult(
        question, sides.window, findings[:MOST_NAMED], found, scanned.share, scanned.estimate,
        list(scanned.unread), notes, sides,
    )  # fmt: skip


def _bounds(sides: Sides, scanned: Scanned) -> LossExclusions:
    """The exclusions, with the offsets that could not be read."""
    copies, sources = dict(sides.bounds.unread_copies), dict(sides.bounds.unread_sources)
    for unread in scanned.unread:
        why = f"its offsets [{unread.start}, {unread.end}) cannot be read: {unread.why}"
        if unread.is_upstream:
            sources[unread.place] = why
        else:
            copies[unread.place.partition] = why
    return sides.bounds._replace(unread_copies=copies, unread_sources=sources)


# -- for REST and files ------------------------------------------------------------------------------


def rows(answer: SearchResult, kinds: Iterable[FindingKind] = FindingKind) -> list[JsonObject]:
    """The findings of these kinds, one row each."""
    wanted = set(kinds)
    return [_row(finding) for finding in answer.findings if finding.kind in wanted]


def _row(finding: Finding) -> JsonObject:
    seen = finding.source if finding.source is not None else finding.copy
    assert seen is not None, "a finding has a source or a copy"
    return {
        "kind": finding.kind.value,
        "id": _text(seen.id),
        "key": _text(seen.key_bytes),
        "at_ms": seen.at_ms,
        "at": iso(seen.at_ms),
        "source": _place(finding.source),
        "copy": _place(finding.copy),
        "one_of": finding.one_of,
        "why": finding.why,
    }


def _place(seen: ObservedRecord | None) -> JsonObject | None:
    if seen is None:
        return None
    cluster, topic, partition = seen.place
    return {"cluster": cluster, "topic": topic, "partition": partition, "offset": seen.offset}


def _text(data: bytes | None) -> str | None:
    """As text; as base64:... if it is not printable text."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    is_text = text.isprintable() and not text.startswith("base64:") and (text or not data)
    return text if is_text else f"base64:{base64.b64encode(data).decode()}"


def result_fields(answer: SearchResult) -> JsonObject:
    """The answer without its rows."""
    question, window = answer.question, answer.window
    cut = [
        {"cluster": place.cluster, "topic": place.topic, "partition": place.partition, "start": 0,
         "end": min(part.start for part in answer.sides.parts if part.reader.place == place), "why": why}
        for place, why in sorted(answer.sides.cut.items())
    ]  # fmt: skip
    unread = [
        {"cluster": unread.place.cluster, "topic": unread.place.topic, "partition": unread.place.partition,
         "start": unread.start, "end": unread.end, "why": unread.why}
        for unread in answer.unread
    ]  # fmt: skip
    return {
        "topic": question.topic,
        "from_tier": question.from_tier,
        "to_tier": question.to_tier,
        "group": question.group or None,
        "start_ms": window.start_ms,
        "start": iso(window.start_ms),
        "end_ms": window.end_ms,
        "counts": answer.counts,
        "complete": answer.is_whole,
        "differs": answer.estimate,
        "unread": cut + unread,
        "notes": answer.notes,
    }
