// The page of placement: where jobs run and why, the workers' load, and recommended sizes.

import { clock, duration, el, link, number, pill, state, table } from "./dom.js";
import { bytes } from "./flow.js";
import { routePath } from "./routes.js";

const MAX_ROWS = 1000; // of jobs, in one page
const cores = (n) => n.toFixed(n < 0.1 ? 3 : 2);
const percent = (part) => `${(part * 100).toFixed(part && part < 0.01 ? 1 : 0)} %`;
const FORM = { cpu_cores: cores, memory_bytes: bytes, network_bytes_per_s: (n) => `${bytes(n)}/s` };
export const workerPath = (worker) => `/placement?worker=${encodeURIComponent(worker)}`;

// The used share of a capacity: a bar, and the same in words.
function level(used, capacity, key, name) {
  const [have, taken] = [capacity?.[key], used?.[key]];
  if (!have || taken === undefined || taken === null) return "unknown";
  return el("span", { class: "level" }, el("meter", { min: 0, max: 1, high: 0.9, value: Math.min(1, taken / have).toFixed(4), "aria-label": `${name} in use` }),
    el("span", {}, `${FORM[key](taken)} of ${FORM[key](have)}, ${percent(taken / have)}`));
}

// A worker with a wrong clock; it uses the brokers' time.
const CLOCK_TOLD_S = 5;
export function clockWords(w) {
  const ahead = w.clock_ahead_s ?? 0;
  if (w.state === "dead" || w.state === "stopped" || Math.abs(ahead) < CLOCK_TOLD_S) return "";
  return `its host's clock is ${duration(Math.abs(ahead))} ${ahead > 0 ? "ahead of" : "behind"} the brokers'`;
}

// A container whose CPU quota is used up so often that its worker is slow (THROTTLED in app/kernel/load.py).
const THROTTLED = 0.1;
function throttledPill(w) {
  if (w.state === "dead" || w.state === "stopped" || (w.cpu_throttled ?? 0) < THROTTLED) return "";
  const words = `its CPU quota was used up in ${(w.cpu_throttled * 100).toFixed(0)} % of the last minute's periods`;
  return [" ", el("span", { title: words }, pill("throttled", "bad"))];
}

export function workersTable(workers) {
  const columns = [["Worker"], ["State"], ["Group"], ["Jobs", "n"], ["Cpu"], ["Memory"], ["Network"], ["Heard", "n"], [""]];
  return table("Workers", columns, workers.map((w) => {
    const gone = w.state === "dead" || w.state === "stopped"; // what it used, it uses no more
    const bar = (key, name) => (gone ? "" : level(w.used, w.capacity, key, name));
    return [
      link(workerPath(w.worker), w.worker), [state(w.state), w.leader ? [" ", pill("leader", "good")] : "", clockWords(w) ? [" ", el("span", { title: clockWords(w) }, pill("wrong clock", "warn"))] : "", throttledPill(w)], w.group || "–", number(w.jobs), bar("cpu_cores", "cpu"), bar("memory_bytes", "memory"), bar("network_bytes_per_s", "network"),
      el("span", { title: `started ${clock(w.started_ms)}` }, `${w.silent_s.toFixed(1)} s ago`), /^https?:\/\//.test(w.url) ? link(`${w.url}/`, "open") : "",
    ];
  }), "No worker sends heartbeats.");
}

// The present and the recommended number: "3 → 5" where they differ.
function figure(f) {
  const same = f.value === null || f.now === null || f.now === f.value;
  return el(same ? "span" : "b", { title: f.why }, same ? number(f.value) : `${number(f.now)} → ${number(f.value)}`);
}

const perSecond = (n) => `${number(n)}/s`;
const measured = (value, form) => (value === null ? "unknown" : form(value));

export function sizingSection(size) {
  if (!size) return [];
  const m = size.measured;
  const rows = [["Partitions", size.partitions, ""], ["In flight", size.in_flight, "at most "], ["Workers", size.workers, ""]].map(([name, f, most]) => [name, measured(f.now, (n) => most + number(n)), measured(f.value, number), f.why]);
  const facts = [
    `arriving ${measured(m.rate_per_s, perSecond)}`, m.retries_per_s ? `again ${perSecond(m.retries_per_s)}` : "", `answered after ${measured(m.latency_ms, (ms) => `${ms.toFixed(1)} ms`)}`,
    `lag ${measured(m.lag_messages, number)}`, m.load ? `takes ${cores(m.load.cpu_cores)} cores, ${bytes(m.load.memory_bytes)}, ${bytes(m.load.network_bytes_per_s)}/s` : "load unknown",
  ];
  return [
    el("h2", {}, "Size"), size.hibernated ? "" : el("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    table("Size", [["What"], ["Now", "n"], ["Recommended", "n"], ["Why", "wrap"]], rows, ""),
  ];
}

function fleetTable(fleets) {
  const columns = [["Isolation group"], ["Workers", "n"], ["Load", "n"], ["Jobs", "n"], ["Why", "wrap"]];
  return table("Fleet", columns, fleets.map((f) => [f.group || "–", figure(f.workers), f.load_ratio === null ? "no worker" : `${percent(f.load_ratio)} of ${f.fullest}`, number(f.jobs), f.workers.why]), "No worker, and no job.");
}

function sizesTable(items, path) {
  const columns = [["Workload"], ["Arriving", "n"], ["Answered after", "n"], ["Partitions", "n"], ["In flight", "n"], ["Workers", "n"], ["Why", "wrap"]];
  return table("Sizes", columns, items.map((s) => {
    const [group, topic] = s.key.split("/");
    return [
      link(path({ group, topic }), s.key), measured(s.measured.rate_per_s, perSecond), measured(s.measured.latency_ms, (ms) => `${ms.toFixed(1)} ms`),
      figure(s.partitions), el("span", { title: s.in_flight.why }, number(s.in_flight.value)), figure(s.workers), s.hibernated ? `hibernated: ${s.hibernated}` : s.workers.why,
    ];
  }), "No workload yet.");
}

function jobsTable(items, path) {
  const columns = [["Job"], ["Workload or route"], ["Worker"], ["Since"], ["Why there", "wrap"], ["Cpu", "n"], ["Memory", "n"], ["Network", "n"]];
  return table("Jobs", columns, items.map((a) => {
    const [kind, key, topic, partition] = a.job.split(":");
    const [group, of] = key.split("/");
    return [
      `${topic}-${partition}`, link(kind === "replicate" ? routePath(key) : path({ group, topic: of }), key), [a.worker || "nobody", a.release ? [" ", pill("leaving", "warn")] : "", a.wish ? el("div", {}, pill(`wanted on ${a.wish}`, "warn")) : ""], clock(a.at_ms), a.reason,
      measured(a.cpu_cores, cores), measured(a.memory_bytes, bytes), measured(a.network_bytes_per_s, (n) => `${bytes(n)}/s`),
    ];
  }), "No job yet.");
}

export function placementPage(workers, sizing, jobs, path) {
  const only = new URLSearchParams(location.search).get("worker");
  const shown = only ? jobs.items.filter((a) => a.worker === only) : jobs.items;
  const more = jobs.next ? `Of the first ${number(MAX_ROWS)} jobs; all of them: switchyard placement show --why` : "";
  return [
    el("h1", {}, "Placement"), el("h2", {}, "Workers"), workersTable(workers),
    el("h2", {}, "Fleet"), fleetTable(sizing.fleets),
    el("h2", {}, only ? `Jobs of ${only}` : "Jobs"), el("p", { class: "quiet" }, only ? link("/placement", "all jobs") : "A job stays where it is until its worker dies, drains or is over capacity, or somebody moves it.", more ? ` ${more}` : ""),
    jobsTable(shown, path),
    el("h2", {}, "Sizes"), sizesTable(sizing.items, path), sizing.next ? el("p", { class: "quiet" }, "All of them: switchyard size recommend") : "",
  ];
}

export const placementPaths = { workers: "/api/v1/workers?limit=1000", sizing: "/api/v1/sizing?limit=200", jobs: `/api/v1/assignments?limit=${MAX_ROWS}` };
