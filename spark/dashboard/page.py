"""The report as one HTML file: without scripts or external files, in light and dark, with charts as inline
SVG. Pure.

All data is escaped. A chart's numbers also stand in its title or in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from app.kernel.json_types import JsonMapping
from spark.dashboard.people import NOT
from spark.dashboard.timeline import AUDIT, INCIDENT, KINDS
from spark.dashboard.times import iso

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6575; --line: #d9dee6; --page: #fff;
  --card: #f6f8fa; --good: #1a7f4b; --bad: #c0362c; --warn: #9a6400; --c0: #2563a8; --c1: #c2571a;
  --c2: #1f8a6d; --c3: #8a4fb0; --c4: #7a6a10; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b5; --line: #333c49;
  --page: #12161c; --card: #1a2029; --good: #4cc38a; --bad: #ff7b72; --warn: #e3b341; --c0: #6cb0f5;
  --c1: #f0955a; --c2: #56cba8; --c3: #c795e8; --c4: #cfbf5a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto;
  max-width: 76rem; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.soft, td.soft, figcaption { color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } td.n, th.n { text-align: right;
  font-variant-numeric: tabular-nums; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; display: block; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
td.wrap { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
.kinds { display: flex; flex-wrap: wrap; gap: 0 1rem; }
svg.bars { min-width: 34rem; max-width: 45rem; }
@media (max-width: 40rem) { body { padding: 1rem; } .events thead { display: none; }
  .events table, .events tbody { display: block; }
  .events tr { display: block; border-bottom: 1px solid var(--line); padding: .3rem 0; }
  .events td { display: inline-block; border: 0; padding: .1rem .6rem .1rem 0;
    white-space: normal; overflow-wrap: anywhere; }
  .events td.wrap { display: block; } .events td:empty { display: none; } }
"""
WIDTH, HEIGHT, LEFT, BOTTOM = 420.0, 150.0, 52.0, 22.0
COLORS = 5
STATES = {"ok": "good", "lossy": "bad", "corrupted": "bad", "duplicated": "warn", "late": "warn"}
HOUR_MS = 3_600_000
WHOSE = (
    '<p class="soft">Figures of topics cover all tiers and consumers, and count in full for each owner. '
    "Delivered records are of the owner's own workloads.</p>"
)

Cell = tuple[str, str]  # HTML, and the class of the cell
Column = tuple[str, Callable[[JsonMapping], Cell]]


def page(report: JsonMapping) -> str:
    """The document of `summary.summarize` as HTML."""
    regions = ", ".join(region["region"] for region in report["regions"])
    totals = report["totals"]
    ready = sum(row["ready"] for row in report["readiness"])
    cards = [
        ("Records", number(totals["records"]), ""),
        ("Missing", number(totals["missing"]), "bad" if totals["missing"] else "good"),
        ("Extra", number(totals["extra"]), "warn" if totals["extra"] else "good"),
        ("Topics", number(totals["topics"]), ""),
        ("Windows compared", number(totals["windows"]), ""),
        (
            "Ready for failover",
            f"{ready} of {len(report['readiness'])}",
            "good" if ready == len(report["readiness"]) else "warn",
        ),
    ]
    bad = sum(row["count"] for row in report["quarantine"]) + report["cut"].get("quarantine", 0)
    parts = [
        "<h1>Switchyard, all regions</h1>",
        f'<p class="soft">{text(regions)}. Windows from {text(report["from"])} to {text(report["to"])}; '
        f"generated {text(report['generated'])}.</p>",
        '<div class="cards">',
        *(
            f'<div class="card">{text(name)}<b class="{kind}">{value}</b></div>'
            for name, value, kind in cards
        ),
        "</div>",
        section("Traffic by topic", charts(report["series"]) + left_out(report, "series", "smaller rows")),
        section("Timeline", timeline(report["timeline"]) + left_out(report, "timeline", "older rows")),
        section("Topics", table(report["topics"], TOPICS)),
        section("Tiers: counts and latencies", table(report["traffic"], TRAFFIC)),
        section(
            "Records without a time, in the whole store",
            table(report["untimed"], UNTIMED) + left_out(report, "untimed", "smaller rows"),
        ),
        section(
            "Latency percentiles by cluster and group",
            bars(report["tiers"]) + left_out(report, "tiers", "smaller rows"),
        ),
        section("Each tier compared with the next", table(report["pairs"], PAIRS)),
        section(
            "Windows with differences or missing reports",
            table(report["windows"], WINDOWS) + left_out(report, "windows", "less severe rows"),
        ),
        section("Failover readiness", table(report["readiness"], READINESS)),
        section("Deliveries by workload", table(_workloads(report), DELIVERIES)),
        section("Workloads and routes", table(report["workloads"], WORKLOADS)),
        section("Owners", table(report["owners"], OWNERS) + (WHOSE if report["owners"] else "")),
        section(
            f"Quarantine: {number(bad)} records",
            table(report["quarantine"], QUARANTINE)
            + left_out(report, "quarantine", "records with less frequent reasons"),
        ),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>Switchyard, all regions</title><style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _workloads(report: JsonMapping) -> list[JsonMapping]:
    return [row for row in report["workloads"] if row["kind"] == "workload"]


def section(title: str, content: str) -> str:
    return f"<h2>{text(title)}</h2>\n" + (content or '<p class="soft">None.</p>')


def text(value: object) -> str:
    return escape("" if value is None else str(value))


def number(value: float | None) -> str:
    """A number with digits in groups of three; fractions with three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def size(value: float | None) -> str:
    """Bytes with a unit."""
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def span(value_ms: float | None) -> str:
    """A time span with a unit."""
    if value_ms is None:
        return "-"
    for unit, length in (("d", 86_400_000), ("h", HOUR_MS), ("min", 60_000), ("s", 1000)):
        if abs(value_ms) >= length:
            return f"{value_ms / length:.3g} {unit}"
    return f"{value_ms:.3g} ms"


def table(rows: Sequence[JsonMapping], columns: Sequence[Column], of: str = "") -> str:
    """Rows as an HTML table; "" if there are none. `of`: the field whose value is the row's class."""
    if not rows:
        return ""
    cells = [[made(row) for _, made in columns] for row in rows]
    head = "".join(
        f'<th class="{kind.split()[0] if kind.startswith("n") else ""}">{text(name)}</th>'
        for (name, _), (_, kind) in zip(columns, cells[0], strict=True)
    )
    lines = (
        (f'<tr class="{row[of]}">' if of else "<tr>")
        + "".join(f'<td class="{kind}">{content}</td>' for content, kind in its)
        + "</tr>"
        for row, its in zip(rows, cells, strict=True)
    )
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>'


def charts(series: Sequence[JsonMapping]) -> str:
    """A line chart for each topic: records at each cluster, and finished by each group."""
    by_topic: dict[str, list[JsonMapping]] = {}
    for row in series:
        if row["points"]:
            by_topic.setdefault(row["topic"], []).append(row)
    figures = []
    for topic, rows in by_topic.items():
        step_ms = rows[0]["step_ms"]
        times = [at for row in rows for at, _ in row["points"]]
        first, last = min(times), max(times)
        most = max(count for row in rows for _, count in row["points"]) or 1
        lines, names = [], []
        for at, row in enumerate(rows):
            color = f"var(--c{at % COLORS})"
            width = max(1.2, 4.2 - 1.2 * at)  # equal lines stay visible behind each other
            lines.append(_line(_filled(row["points"], first, last, step_ms), first, last, most, color, width))
            names.append(f'<span style="color:{color}">{text(row["place"])}</span>')
        title = f"{topic}: at most {number(most)} records in {span(step_ms)}"
        figures.append(
            f"<figure>{_frame(first, last, most, lines, title)}"
            f"<figcaption>{text(topic)}, each {span(step_ms)}: {' · '.join(names)}</figcaption></figure>"
        )
    return f'<div class="grid">{"".join(figures)}</div>' if figures else ""


def _filled(points: Sequence[Sequence[int]], first: int, last: int, step: int) -> list[tuple[int, int]]:
    """Adds 0 for times without windows."""
    known = {point[0]: point[1] for point in points}
    return [(at, known.get(at, 0)) for at in range(first, last + 1, step)]


def _line(
    points: Sequence[tuple[int, int]], first: int, last: int, most: int, color: str, width: float
) -> str:
    across, up = (WIDTH - LEFT - 8) / max(1, last - first), (HEIGHT - BOTTOM - 8) / most
    spots = [(LEFT + (at - first) * across, HEIGHT - BOTTOM - count * up) for at, count in points]
    if len(spots) == 1:
        return f'<circle cx="{spots[0][0]:.1f}" cy="{spots[0][1]:.1f}" r="3" fill="{color}"/>'
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    return f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="{width:g}"/>'


def _frame(first: int, last: int, most: int, lines: Iterable[str], title: str) -> str:
    floor = HEIGHT - BOTTOM
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img">'
        f"<title>{text(title)}</title>"
        f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - 8}" y2="{floor}" stroke="var(--line)"/>'
        f'<line x1="{LEFT}" y1="8" x2="{WIDTH - 8}" y2="8" stroke="var(--line)" stroke-dasharray="3 4"/>'
        f'<text x="{LEFT - 4}" y="12" text-anchor="end">{number(most)}</text>'
        f'<text x="{LEFT - 4}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{iso(first)[:16]}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" text-anchor="end">{iso(last)[:16]}</text>'
        f"{''.join(lines)}</svg>"
    )


def bars(tiers: Sequence[JsonMapping]) -> str:
    """p50, p95 and p99 of each cluster and group, as bars on one scale."""
    known = [row for row in tiers if row["p99_ms"] is not None]
    if not known:
        return ""
    most = max(row["p99_ms"] for row in known) or 1.0
    height = 22.0 * len(known) * 3 + 8
    drawn, y = [], 4.0
    for row in known:
        for at, rank in enumerate(("p50_ms", "p95_ms", "p99_ms")):
            width = max(1.0, row[rank] / most * 360)
            drawn.append(
                f'<text x="270" y="{y + 13:.0f}" text-anchor="end">{text(row["name"])} {rank[:3]}</text>'
                f'<rect x="276" y="{y:.0f}" width="{width:.1f}" height="16" rx="2" fill="var(--c{at})"/>'
                f'<text x="{280 + width:.1f}" y="{y + 13:.0f}">{span(row[rank])}</text>'
            )
            y += 22
    content = f"<title>Latencies by cluster and group</title>{''.join(drawn)}"
    drawing = f'<svg class="bars" viewBox="0 0 720 {height:.0f}" role="img">{content}</svg>'
    return f'<figure class="scroll">{drawing}</figure>'


def timeline(rows: Sequence[JsonMapping]) -> str:
    """The timeline, with a checkbox for each kind that hides its rows, by CSS alone."""
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    if not kinds:
        return ""
    rules = "".join(
        f".k-{kind}:has(#k-{kind}:not(:checked)) tr.{kind} {{ display: none; }}" for kind in kinds
    )
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in kinds}
    boxes = "".join(
        f'<label><input type="checkbox" id="k-{kind}" checked> {kind} {number(counts[kind])}</label>'
        for kind in kinds
    )
    classes = " ".join(["events", *(f"k-{kind}" for kind in kinds)])
    return (
        f'<style>{rules}</style><div class="{classes}"><p class="kinds">{boxes}</p>'
        f"{table(rows, TIMELINE, of='kind')}</div>"
    )


def left_out(report: JsonMapping, part: str, which: str) -> str:
    """The number of rows that a part leaves out, if any."""
    more = report["cut"].get(part)
    return f'<p class="soft">{number(more)} {which} are not shown.</p>' if more else ""


def _states(row: JsonMapping) -> Cell:
    report = (
        f'<span class="{STATES.get(state, "")}">{number(count)} {text(state)}</span>'
        for state, count in sorted(row["states"].items())
    )
    return " · ".join(report), ""


def _word(name: str) -> Column:
    return name.replace("_", " ").capitalize(), lambda row: (text(row[name]), "")


def _count(name: str, bad: str = "") -> Column:
    title = name.replace("_", " ").capitalize()
    return title, lambda row: (number(row[name]), f"n {bad}" if bad and row[name] else "n")


def _bytes(name: str) -> Column:
    return name.replace("_", " ").capitalize(), lambda row: (size(row[name]), "n")


def _span(name: str) -> Column:
    title = name.removesuffix("_ms").replace("_", " ").capitalize()
    return title, lambda row: (span(row[name]), "n")


def _audited(name: str, bad: str = "", title: str = "") -> Column:
    of_name, made = _count(name, bad)
    return (
        title or of_name,
        lambda row: (NOT, "n soft") if row[name] is None and row["workloads"] else made(row),
    )


def _until(row: JsonMapping) -> Cell:
    if row["until_ms"] is None:
        return ("no end known" if row["kind"] == INCIDENT else "ongoing"), "warn"
    return ("" if row["until_ms"] == row["from_ms"] else text(row["until"])), ""


TOPICS = [
    _word("topic"),
    ("Owners", lambda row: (text(", ".join(row["owners"])), "")),
    _count("records"), _bytes("bytes"), _count("missing", "bad"), _count("extra", "warn"),
    ("Windows", _states),
]  # fmt: skip
TRAFFIC = [
    _word("topic"), _word("tier"), _word("cluster"), _count("records"), _bytes("bytes"),
    _count("duplicates", "warn"), _count("late", "warn"), _count("open_windows"),
    _span("p50_ms"), _span("p95_ms"), _span("p99_ms"),
]  # fmt: skip
UNTIMED = [
    _word("topic"), _word("tier"), _word("cluster"), _count("records"), _bytes("bytes"),
    _count("duplicates", "warn"),
]  # fmt: skip
PAIRS = [
    _word("topic"), _word("region"), _word("from_tier"), _word("to_tier"), _word("group"),
    _count("windows"), ("States", _states), _count("missing", "bad"), _count("extra", "warn"),
    _span("lag_ms"), _span("behind_ms"),
]  # fmt: skip
WINDOWS = [
    _word("start"), _word("topic"), _word("region"), _word("from_tier"), _word("to_tier"), _word("group"),
    ("State", lambda row: (text(row["state"]), STATES.get(row["state"], "warn"))),
    _count("from_count"), _count("to_count"), _count("missing"), _count("extra"), _word("absent"),
]  # fmt: skip
READINESS = [
    _word("workload"), _word("owner"), _word("region"), _word("to"),
    ("Ready", lambda row: ("yes", "good") if row["ready"] else ("no", "bad")),
    ("Why not", lambda row: (text("; ".join(row["why"])), "")),
    _count("partitions"), _count("partitions_copied"), _span("barrier_age_ms"),
]  # fmt: skip
DELIVERIES = [
    _word("region"), _word("key"), _word("owner"),
    ("Audited", lambda row: (text(row["audited"]), "warn" if row["audited"] == NOT else "")),
    _count("delivered"), _count("missing", "bad"), _count("extra", "warn"), _count("duplicates", "warn"),
    _span("p50_ms"), _span("p95_ms"), _span("p99_ms"), _count("lag_messages"),
]  # fmt: skip
WORKLOADS = [
    _word("region"), _word("kind"), _word("key"), _word("owner"), _count("jobs"), _count("workers"),
    _count("lag_messages"), _count("arriving"), _count("core_hours"), _bytes("network_bytes"),
    _bytes("memory_bytes"), _span("position_age_ms"),
]  # fmt: skip
OWNERS = [
    _word("owner"), _count("workloads"), _count("not_audited", "warn"), _count("topics"),
    _audited("records", title="Topics' records"), _audited("missing", "bad", "Topics' missing"),
    _audited("extra", "warn", "Topics' extra"), _audited("delivered"),
    _audited("duplicates", "warn"), _span("p50_ms"), _span("p95_ms"), _span("p99_ms"),
    _count("ready"), _count("not_ready", "warn"),
    _count("lag_messages"), _count("core_hours"), _bytes("network_bytes"),
]  # fmt: skip
TIMELINE = [
    _word("from"), ("Until", _until), _word("region"),
    ("Kind", lambda row: (text(row["kind"]), "warn" if row["kind"] in (AUDIT, INCIDENT) else "")),
    ("What", lambda row: (text(row["what"]), "wrap")), _word("who"),
]  # fmt: skip
QUARANTINE = [_word("region"), _word("table"), _word("reason"), _count("count")]
