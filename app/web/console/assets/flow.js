// What limits a workload: its receivers, its workers, and messages that block partitions.

import { clock, duration, el, number, pill, state, table } from "./dom.js";

// The bounds of a workload in short words; the sentence with numbers comes from the worker.
const WORDS = {
  worker: ["bad", "no worker runs it"], lease: ["bad", "the worker may not act"], health: ["bad", "the receiver's health check does not say SERVING"],
  breaker: ["bad", "the receiver is away or overloaded"], "dead-letters": ["bad", "messages fail, and no more may be dead-lettered now"], copying: ["warn", "copies to a retry topic or the dead letter queue"], paused: ["warn", "an operator paused it, or another region may have it"], "head-of-line": ["bad", "one message blocks its partition"],
  rate: ["warn", "the definition's rate"], cpu: ["bad", "the CPU quota of the worker's container"], "slow-start": ["warn", "the receiver has just come back"], limit: ["warn", "the receiver has as much as it can take"],
  credit: ["warn", "the receiver asks for no more"], tracker: ["warn", "tracker.capacity"], order: ["warn", "the order of keys"],
  memory: ["warn", "the worker's memory"], "catch-up": ["warn", "a backlog beside the latest"], fetch: ["", "reading from Kafka"], throttled: ["warn", "the broker's quota delays reading"],
  delay: ["", "messages wait for their time"], backoff: ["warn", "messages that failed wait, and those that the receiver wants later"], hibernated: ["", "nothing to do: it sleeps"], passive: ["", "another region runs it"], none: ["good", "nothing"],
};
export const bound = (word) => el("span", { class: `pill ${WORDS[word]?.[0] ?? ""}`, title: WORDS[word]?.[1] ?? word }, word);
const grave = (word) => WORDS[word]?.[0] === "bad";
export const share = (value) => (value === null || value === undefined ? "–" : `${(value * 100).toFixed(value && value < 0.1 ? 2 : 0)} %`);
export const bytes = (n) => (n < 1024 ? `${Math.round(n)} B` : n < 1048576 ? `${(n / 1024).toFixed(0)} KiB` : n < 1073741824 ? `${(n / 1048576).toFixed(1)} MiB` : `${(n / 1073741824).toFixed(1)} GiB`);
const HEALTH = { serving: ["good", "serving"], "not-serving": ["bad", "not serving"], unknown: ["bad", "answers UNKNOWN"], "service-unknown": ["bad", "answers SERVICE_UNKNOWN"], unimplemented: ["", "says nothing"], unreachable: ["warn", "unreachable"] };

function facts(entries) {
  return el("dl", { class: "facts" }, entries.filter(([, value]) => value !== "" && value !== null).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

const STATES = { ready: "good", slow: "warn", silent: "bad", probing: "bad", ejected: "bad", "not-serving": "bad", leaving: "warn" };

const ENDPOINT_COLUMNS = [["Endpoint"], ["State"], ["Why", "wrap"], ["For", "n"], ["In flight", "n"], ["Share", "n"], ["Not taken", "n"], ["Latency", "n"], ["Worker"], ["Receiver"]];

function endpoints(receivers) {
  const rows = receivers.flatMap((r) => (r.endpoints ?? []).map((e) => [e.local ? `${e.name} (same zone)` : e.name, pill(e.state, STATES[e.state] ?? ""), e.why ?? "", duration(e.for_s), `${number(e.in_flight)} of ${number(e.limit)}`, share(e.share), share(e.failed_share), e.latency_ms === null ? "–" : `${e.latency_ms} ms`, r.worker, r.address]));
  const more = receivers.reduce((sum, r) => sum + (r.more_endpoints ?? 0), 0);
  if (!rows.length && !more) return [];
  rows.sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }));
  return [el("h2", {}, "Endpoints"), table("Endpoints", ENDPOINT_COLUMNS, rows, ""), more ? el("p", { class: "quiet" }, `and ${number(more)} more`) : ""];
}

function receiverCard(r) {
  const [kind, health] = HEALTH[r.health] ?? ["", "not heard yet"];
  const slow = r.allowed < r.limit ? `, slow start lets ${number(r.allowed)} through` : "";
  const probe = r.probe_in_s === null ? "" : r.probe_in_s > 0 ? `the next probe in ${duration(r.probe_in_s)}` : "the next message is a probe";
  return el("section", { class: "card" }, el("h3", {}, r.address), el("p", { class: "quiet" }, `as ${r.worker} sees it`),
    r.unresolved ? el("p", { class: "why bad" }, `no endpoint: ${r.unresolved}`) : "",
    r.why_open ? el("p", { class: "why bad" }, `${r.why_open}; ${probe}`) : "",
    facts([
      ["breaker", state(r.breaker)], ["health", pill(health, kind)], ["contract", r.contract],
      ["in flight", `${number(r.in_flight)} of ${number(r.limit)}${slow}`],
      ["limit", r.ceiling === null ? "fixed, this worker's share" : `adaptive (${r.phase}), at most ${number(r.ceiling)}`],
      ["credit", r.credit === null ? "" : number(r.credit)], ["held for it", number(r.held)],
      ["timeout", r.timeout_s === r.base_timeout_s ? duration(r.timeout_s) : `${duration(r.timeout_s)}, adapted from ${duration(r.base_timeout_s)}`],
      ["failed", r.failed_share === null ? "no answer lately" : `${share(r.failed_share)} of ${number(r.calls)} answers`],
    ]));
}

function workerCard(f) {
  const rate = (unit, name) => (f[`${unit}_per_s`] === null ? "" : `${name(f[`${unit}_per_s`])}/s${f[`${unit}_short`] ? `, ${name(f[`${unit}_short`])} short` : ""}`);
  const some = (value, words) => (value ? `${number(value)} ${words}` : "");
  const states = [some(f.paused, "paused"), some(f.catching_up, "catching up"), some(f.emptying, "emptying")].filter(Boolean).join(", ");
  return el("section", { class: "card" }, el("h3", {}, f.worker, " ", bound(f.bound)), el("p", { class: grave(f.bound) ? "why bad" : "why" }, f.why),
    facts([
      ["partitions", `${number(f.jobs)}${states ? ` (${states})` : ""}`], ["in flight", number(f.in_flight)], ["ready to go", number(f.ready)],
      ["wait for a receiver", f.held ? number(f.held) : ""], ["wait for their turn", f.behind ? number(f.behind) : ""],
      ["wait for their time", f.postponed ? `${number(f.postponed)}${f.due_in_s === null ? "" : `, first in ${duration(Math.max(0, f.due_in_s))}`}` : ""],
      ["wait to be tried again", f.backoff ? number(f.backoff) : ""],
      ["on their way to a retry topic or the dead letter queue", f.outgoing ? number(f.outgoing) : ""],
      ["failed, not dead-lettered yet", f.withheld ? `${number(f.withheld)} (${Object.entries(f.withheld_by).map(([code, n]) => `${code} ${number(n)} times`).join(", ")})` : ""], ["still to be read", number(f.unread)],
      ["messages", rate("messages", number)], ["bytes", rate("bytes", bytes)],
      ["memory", `${share(f.budget_used)} of the budget, ${bytes(f.buffered_bytes)} its own`],
    ]));
}

const limit = (value) => `${Number((value * 100).toPrecision(6))} %`;  // as people wrote it

function headOfLine(h) {
  const columns = [["Partition"], ["Offset", "n"], ["Out for", "n"], ["Tracker in use", "n"], ["Unfinished", "n"], ["Why it was not moved yet", "wrap"], ["Worker"]];
  const rows = h.candidates.map((c) => [`${c.topic}-${c.partition}`, String(c.offset), c.age_s === null ? "not sent" : duration(c.age_s), share(c.tracker_used), share(c.unfinished_share), c.why_not, c.worker]);
  const moved = h.decisions.map((d) => [clock(d.at_ms), `${d.topic}-${d.partition}`, String(d.offset), d.rule, d.reason]);
  return [
    el("h2", {}, "Head of line"),
    el("p", { class: "quiet" }, `A message is moved away when it is out longer than ${duration(h.after_s)}, or longer than ${duration(h.patience_s ?? 1)} while more than ${limit(h.use_threshold)} of its partition's tracker is in use and less than ${limit(h.unfinished_threshold)} of that unfinished. Moved away so far: ${number(h.stashed)}.`),
    table("Candidates", columns, rows, "No message holds a partition back."), h.more_candidates ? el("p", { class: "quiet" }, `and ${number(h.more_candidates)} more`) : "",
    moved.length ? el("h3", {}, "Moved away lately") : "", moved.length ? table("Decisions", [["When"], ["Partition"], ["Offset", "n"], ["Rule"], ["Numbers", "wrap"]], moved, "") : "",
  ];
}

export function flowSections(w) {
  const f = w.flow;
  if (!f) return []; // asked of a worker of an older version
  return [
    el("p", { class: `verdict ${grave(f.bound) ? "bad" : f.bound === "none" ? "good" : "plain"}` }, el("b", {}, f.bound === "none" ? "Nothing holds it back" : f.bound === "hibernated" ? "Hibernated" : f.bound === "passive" ? "Passive here" : `Held back by: ${WORDS[f.bound]?.[1] ?? f.bound}`), `. ${f.why}${f.worker ? ` (${f.worker})` : ""}`),
    el("h2", {}, "Receivers"), f.receivers.length ? el("div", { class: "cards" }, f.receivers.map(receiverCard)) : el("p", { class: "quiet" }, "No worker has reported them yet."),
    ...endpoints(f.receivers),
    el("h2", {}, "Workers"), f.workers.length ? el("div", { class: "cards" }, f.workers.map(workerCard)) : el("p", { class: "quiet" }, "No worker runs it."),
    ...headOfLine(f.head_of_line),
  ];
}
