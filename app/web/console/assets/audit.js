// Audit: what was counted at each tier, in windows of event time, and what has not arrived.

import { byWindow, chart, inOrder, worst } from "./audit_chart.js";
import { missingSection } from "./audit_missing.js";
import { badge, PHASES, quoted, sentence, several, STATES, tierOf } from "./audit_words.js";
import { clock, duration, el, link, number, pill, table, time } from "./dom.js";

const RANGES = [["1h", "the last hour"], ["6h", "the last 6 hours"], ["24h", "the last day"], ["7d", "the last 7 days"], ["0", "all that is kept"]];
const USUAL = "6h";
const MOST_ROWS = 200; // of the table of tiers; the files have all
const MOST = 1000; // rows of a page of the API
const ASK_AGAIN_MS = 30000; // for what this worker does not tell
const ALL_STATES = ["ok", "provisional", "lossy", "duplicated", "corrupted", "late", "absent-audit"];
const asked = new URLSearchParams(location.search);
const from = asked.get("from") || USUAL;
const to = asked.get("to") || "";

const topicPath = (topic, more = {}) => `/audit/${encodeURIComponent(topic)}?${new URLSearchParams({ from, ...(to ? { to } : {}), ...more })}`;
const query = (more) => new URLSearchParams([["from", from], ...(to ? [["to", to]] : []), ...more]).toString();
const ms = (value) => (value === null ? "–" : duration(value / 1000));
const short = (at) => clock(at).replace(/:00$/, ""); // windows seldom begin within a minute
const span = (row) => (row.start_ms === null ? "records without a time" : `${short(row.start_ms)} – ${short(row.end_ms).slice(11)}`);

// The page's address fills the fields; they become a query, which changes nothing.
function filter(name, value, hint) {
  const options = RANGES.some(([known]) => known === from) ? RANGES : [[from, `since ${from}`], ...RANGES];
  return el("form", { class: "acts", method: "get" },
    name ? el("label", {}, "Topics with ", el("input", { name, value, type: "search", placeholder: hint, maxlength: 250 })) : "",
    el("label", {}, "in ", el("select", { name: "from" }, options.map(([known, text]) => el("option", { value: known, ...(known === from ? { selected: "" } : {}) }, text)))),
    el("label", {}, "before ", el("input", { name: "to", value: to, placeholder: "now, or 2h (ago)", title: "2h (ago), or a time such as 2026-01-31T12:00", maxlength: 40, size: 18 })),
    el("button", { type: "submit" }, "Show"));
}

function downloads(topic) {
  const file = (list, format, more) => el("a", { href: `/api/v1/audit/${list}?${query([["topic", topic], ["format", format], ...more])}`, download: `audit-${list}-${topic}.${format === "csv" ? "csv" : "jsonl"}` }, format === "csv" ? "CSV" : "JSON lines");
  const states = ALL_STATES.map((state) => ["state", state]);
  return el("p", { class: "where" }, "Windows as ", file("windows", "csv", []), " or ", file("windows", "ndjson", []), ", differences as ", file("loss", "csv", states), " or ", file("loss", "ndjson", states), ".");
}

// Firing alerts; the page shows the rest when they cannot be read.
function alertNotes(alerts) {
  const firing = alerts.filter((one) => (one.state ?? "firing") === "firing");
  return firing.map((one) => el("div", { class: "note" }, pill(one.severity ?? "alert", one.severity === "info" ? "" : "bad"), " ", link(`/alerts/${encodeURIComponent(one.name)}`, one.name), ` ${[one.topic, one.from_tier ? `${one.from_tier} → ${tierOf(one.to_tier, one.group)}` : "", one.what].filter(Boolean).join(": ")}`,
    el("small", {}, [one.since_ms ? `since ${clock(one.since_ms)}` : "", ...(one.todo ?? [])].filter(Boolean).join(" · "))));
}

function topicVerdict(t) {
  const words = [];
  if (t.states.lossy) words.push(`${several(t.missing, "record")} missing in ${several(t.states.lossy, "window")}`);
  if (t.states.corrupted) words.push(`contents differ in ${several(t.states.corrupted, "window")}`);
  if (t.states.duplicated) words.push(`${several(t.extra, "record")} too many in ${several(t.states.duplicated, "window")}`);
  if (t.states.late) words.push(`${several(t.states.late, "window")} late`);
  if (t.states["absent-audit"]) words.push(`${several(t.states["absent-audit"], "window")} not known: the audit of ${t.absent.join(", ")} is absent`);
  if (t.silent.length) words.push(`no reports now from: ${t.silent.join(", ")}`);
  return words;
}

function topicsTable(topics) {
  const columns = [["Topic"], ["State"], ["What is wrong", "wrap"], ["Missing", "n"], ["Too many", "n"], ["Late", "n"], ["Duplicates", "n"], ["Windows", "n"], ["Arrived", "n"], ["Tiers"], ["Newest window"]];
  return table("Topics", columns, topics.map((t) => [
    link(topicPath(t.topic), t.topic), [badge(t.state), t.silent.length ? [" ", pill("silent", "warn")] : ""], topicVerdict(t).join("; "), number(t.missing), number(t.extra), number(t.late), number(t.duplicates),
    number(t.windows), number(t.states.ok), inOrder(t.tiers).join(" → "), t.newest_ms === null ? "none" : short(t.newest_ms),
  ]), "No audited topic was counted in this time.");
}

function plansTable(plans) {
  const columns = [["Plan"], ["Clusters"], ["Partitions", "n"], ["Not reported yet", "n"], ["Trouble", "wrap"]];
  return table("Plans", columns, plans.map((p) => [p.name, p.clusters.join(", "), number(p.jobs), number(p.lag_messages), p.troubles.join("; ")]), "No audit plan yet. Deploy one (kind: AuditPlan): switchyard config deploy -f plan.yaml --execute");
}

function topicsPage({ topics, notes: unsaid, more, plans, alerts }) {
  const wanted = (asked.get("topic") ?? "").trim();
  const shown = topics.filter((t) => t.topic.includes(wanted));
  const wrong = shown.filter((t) => ["lossy", "corrupted", "duplicated"].includes(t.state));
  const unknown = shown.filter((t) => t.state === "absent-audit" || t.silent.length);
  const said = wrong.length ? el("p", { class: "verdict bad" }, el("b", {}, `${number(wrong.length)} of ${number(shown.length)} topics differ between their tiers.`), unknown.length ? ` ${number(unknown.length)} are not fully known.` : "")
    : unknown.length ? el("p", { class: "verdict plain" }, `No missing record is known; ${number(unknown.length)} of ${number(shown.length)} topics are not fully known.`)
      : shown.length ? el("p", { class: "verdict good" }, "All records of the compared windows have arrived.") : "";
  return [
    el("h1", {}, "Audit"), said, alertNotes(alerts), filter("topic", wanted, "part of a name"), partial(unsaid), topicsTable(shown),
    more ? el("p", { class: "quiet" }, "These are the first topics by name; the API has the others.") : "",
    el("h2", {}, "Plans"), plansTable(plans), el("p", { class: "where" }, "or: switchyard audit report|loss|watch"),
  ];
}

const tierColumns = [["Window"], ["Tier"], ["Cluster"], ["State"], ["Records", "n"], ["Late", "n"], ["Duplicates", "n"], ["p50", "n"], ["p95", "n"], ["p99", "n"], ["Told", "wrap"]];
const notes = (row) => [row.complete ? "" : "incomplete: counting began later", row.remark ?? "", row.without.length ? `closed without ${row.without.join(", ")}` : ""].filter(Boolean).join("; ");
const tierRow = (row, href) => [
  href ? link(href, span(row)) : span(row), row.tier, row.cluster, PHASES[row.state] ?? row.state, number(row.count), number(row.late), number(row.duplicates), ms(row.p50_ms), ms(row.p95_ms), ms(row.p99_ms), notes(row),
];

// An audit is absent for many windows at a time: consecutive ones are one row.
function together(verdicts) {
  const runs = [];
  for (const v of verdicts) {
    const same = (run) => run.at(-1).start_ms === v.end_ms && ["state", "from_tier", "to_tier", "group"].every((name) => run[0][name] === v[name]) && run[0].absent.join() === v.absent.join();
    const found = v.state === "absent-audit" ? runs.find(same) : undefined;
    if (found) found.push(v);
    else runs.push([v]);
  }
  return runs;
}

function differences(verdicts, href) {
  const columns = [["Window"], ["State"], ["What differs", "wrap"], ["Later by", "n"]];
  return table("Differences", columns, together(verdicts).map((run) => {
    const [newest, oldest] = [run[0], run.at(-1)];
    const when = span({ start_ms: oldest.start_ms, end_ms: newest.end_ms });
    const lag = run.length > 1 || newest.lag_ms === null ? "–" : `${newest.lag_ms < 0 ? "-" : ""}${duration(Math.abs(newest.lag_ms) / 1000)}`;
    return [href ? link(href(newest), when) : when, badge(newest.state), run.length > 1 ? `${several(run.length, "window")}: the audit of ${newest.absent.join(", ")} is absent: whether anything is missing is not known` : sentence(newest), lag];
  }), "None: all windows that could be compared are the same at every tier.");
}

const of = (row) => topicPath(row.topic, { window: row.start_ms });

function topicPage(topic, { windows, verdicts, notes: unsaid, cut, alerts }, { tiles, where }) {
  const all = byWindow(windows, verdicts);
  if (cut) all.pop(); // whose other rows may be on the next page of the API
  const found = all.flatMap((window) => window.verdicts);
  const many = (state) => found.filter((v) => v.state === state).length;
  const sum = (list, name) => list.reduce((total, row) => total + (row[name] ?? 0), 0);
  const missing = sum(found.filter((v) => v.state === "lossy"), "missing");
  const wrong = found.filter((v) => !["ok", "provisional"].includes(v.state));
  const part = all.filter((window) => !window.complete);
  const over = wrong.length ? "" : found.some((v) => v.state === "ok") ? "All records of the compared windows have arrived." : "";
  const lines = [
    missing ? `${several(missing, "record")} missing, at least` : "", many("corrupted") ? `contents differ in ${several(many("corrupted"), "window")}` : "", many("duplicated") ? `${several(sum(found.filter((v) => v.state === "duplicated"), "extra"), "record")} too many` : "",
    many("late") ? `${several(many("late"), "window")} late` : "", many("absent-audit") ? `${several(many("absent-audit"), "window")} without an audit of one tier: loss is not known there` : "",
  ].filter(Boolean);
  const bad = missing || many("corrupted") || many("duplicated");
  return [
    where(link(`/audit?${query([])}`, "Audit")), el("h1", {}, topic),
    over ? el("p", { class: "verdict good" }, over) : lines.length ? el("div", { class: `verdict ${bad ? "bad" : "plain"}` }, el("b", {}, lines[0][0].toUpperCase() + lines[0].slice(1)), lines.length > 1 ? el("ul", {}, lines.slice(1).map((words) => el("li", {}, words))) : "") : el("p", { class: "verdict plain" }, all.length ? "No window could be compared yet." : "Nothing was counted in this time."),
    alertNotes(alerts.filter((one) => !one.topic || one.topic === topic)), filter("", "", ""), partial(unsaid),
    tiles([["windows", number(all.length)], ["arrived", number(many("ok"))], ["records missing", number(missing)], ["came late", number(sum(windows, "late"))], ["duplicates", number(sum(windows, "duplicates"))]]),
    el("h2", {}, "Windows"), chart(all, (window) => topicPath(topic, { window: window.start })),
    part.length ? el("p", { class: "quiet" }, `${several(part.length, "window")} incomplete: counting began later, so they are not compared.`) : "",
    downloads(topic), cut ? el("p", { class: "quiet" }, "These are the newest; the files have all.") : "",
    el("h2", {}, "What differs"), differences(wrong, of),
    wrong.length ? el("p", { class: "where" }, `switchyard audit loss --topic ${quoted(topic)}; a window's page names its missing records.`) : "",
    el("h2", {}, "Counted, tier by tier"), table("Tiers", tierColumns, all.flatMap((window) => window.rows).slice(0, MOST_ROWS).map((row) => tierRow(row, row.start_ms === null ? "" : of(row))), "Nothing was counted in this time."),
  ].flat();
}

function windowPage(topic, start, { windows, verdicts, alerts }, { where }) {
  const window = byWindow(windows, verdicts).find((one) => one.start === start);
  const back = where(link("/audit", "Audit"), link(topicPath(topic), topic));
  if (!window) return [back, el("h1", {}, topic), el("div", { class: "note" }, `No window that begins at ${time(start)} is kept.`)];
  const v = worst(window);
  const kind = { good: "good", bad: "bad" }[STATES[v?.state]?.[0]] ?? "plain";
  const told = v ? window.verdicts.map(sentence) : [window.complete ? "One tier only: there is nothing to compare it with." : "Counting began after this window: it may lack earlier records, and is not compared."];
  const rows = window.rows.map((row) => [...tierRow(row, "").slice(1), el("code", { title: "sum of all message ids; equal where the records are equal" }, row.ids ?? "–")]);
  const differing = window.verdicts.filter((one) => ["lossy", "corrupted", "duplicated"].includes(one.state));
  return [
    back, el("h1", {}, `${topic}, ${span({ start_ms: window.start, end_ms: window.end })}`),
    el("div", { class: `verdict ${kind}` }, told.length > 1 ? el("ul", {}, told.map((words) => el("li", {}, words))) : el("b", {}, told[0])),
    alertNotes(alerts.filter((one) => one.topic === topic && (one.start_ms ?? start) === start)),
    el("h2", {}, "Between tiers"), differences(window.verdicts),
    ...differing.flatMap(missingSection),
    el("h2", {}, "At each tier"), table("Tiers", [...tierColumns.slice(1), ["Sum of message ids"]], rows, "Nothing was counted."),
    el("p", { class: "where" }, "Latencies (p50, p95, p99) are from a record's time to its counting; exact to one percent."),
  ];
}

// A list that may be too long for one answer.
const partial = (unsaid) => unsaid.map((words) => el("div", { class: "note" }, words));

// A request that an older worker does not know is not repeated.
function maybe(get, url) {
  let known = [];
  let next = 0;
  return async () => {
    if (Date.now() < next) return known;
    next = Date.now() + (known.length ? 3000 : 10000);
    try {
      known = (await get(url)).items ?? [];
    } catch {
      [known, next] = [[], Date.now() + ASK_AGAIN_MS];
    }
    return known;
  };
}

let isScrolled = false; // once: afterwards it stays where it was scrolled to

function scrollToNewest() {
  const drawn = document.querySelector(".chart");
  if (!drawn || isScrolled) return;
  drawn.scrollLeft = drawn.scrollWidth;
  isScrolled = true;
}

// The loader for an address of these pages.
export function auditLoader(get, topic, parts) {
  const alerts = maybe(get, "/api/v1/alerts?limit=200");
  if (!topic) {
    return async () => {
      const [topics, plans, firing] = await Promise.all([get(`/api/v1/audit/topics?${query([["limit", MOST]])}`), get(`/api/v1/audit/plans?limit=${MOST}`), alerts()]);
      return topicsPage({ topics: topics.items, notes: topics.notes ?? [], more: topics.next, plans: plans.items, alerts: firing });
    };
  }
  const start = asked.has("window") ? Number(asked.get("window")) : null;
  const within = start === null ? query([]) : new URLSearchParams({ from: start, to: start + 1 }).toString();
  const named = new URLSearchParams({ topic, limit: MOST }).toString();
  const states = ALL_STATES.map((state) => `&state=${state}`).join("");
  return async () => {
    const [windows, verdicts, firing] = await Promise.all([get(`/api/v1/audit/windows?${named}&${within}`), get(`/api/v1/audit/loss?${named}&${within}${states}`), alerts()]);
    const found = { windows: windows.items, verdicts: verdicts.items, notes: windows.notes ?? [], cut: windows.next || verdicts.next, alerts: firing };
    requestAnimationFrame(scrollToNewest);
    return start === null ? topicPage(topic, found, parts) : windowPage(topic, start, found, parts);
  };
}
