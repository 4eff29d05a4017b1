// The console: fills the shell from the API.

import { alertAct, alertLoader } from "./alerts.js";
import { auditLoader } from "./audit.js";
import { auditAct } from "./audit_missing.js";
import { clock, duration, el, incident, link, number, pill, state, table } from "./dom.js";
import { failoverPage, roleBadge, roleLine } from "./failover.js";
import { failoverAct, runSections, runsSection } from "./failover_runs.js";
import { bound, flowSections, share } from "./flow.js";
import { clockWords, placementPage, placementPaths, sizingSection, workerPath, workersTable } from "./placement.js";
import { routeAct, routePage, routePath, routesTable } from "./routes.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const path = location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
const SVG = "http://www.w3.org/2000/svg";
const banner = document.getElementById("banner");
const NEWS_S = 300; // a dead worker's jobs have moved by then; the table of workers goes on showing it
const SILENT_MS = 4000; // the worker speaks every second
const PATIENCE_MS = 8000;
let heard = 0; // when what is shown was true; 0: nothing is shown yet
let region = ""; // that of the worker, where a page needs it
let before = null; // the overview a moment ago, for rates

const workloadPath = (w) => `/workloads/${encodeURIComponent(w.group)}/${encodeURIComponent(w.topic)}`;

const where = (...places) => el("p", { class: "where" }, places.flatMap((place, i) => (i ? [" / ", place] : [place])));

const rests = (x) => x.hibernated || x.bound === "passive"; // nobody reads it here: there is nothing to wait for
const lag = (x) => (rests(x) ? "–" : number(x.lag_messages));

// Unknown values are shown as such. A value known in part (unfetched messages have no age) is a lower bound.
function lagTime(x) {
  if (x.lag_s !== null && x.lag_s !== undefined) return duration(x.lag_s);
  if (rests(x)) return "–";
  if (x.lag_messages === null) return "unknown";
  return x.lag_s_at_least ? `${duration(x.lag_s_at_least)} or more` : "fetching";
}

function tiles(entries) {
  return el("div", { class: "tiles" }, entries.map(([name, value]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name))));
}

function perSecond(now, then, count) {
  if (!now || !then || now.at_ms <= then.at_ms || !(now[count] >= then[count])) return "";
  return `${number(((now[count] - then[count]) * 1000) / (now.at_ms - then.at_ms))}/s`;
}

function rate(now, list, name, key, count) {
  const [old, current] = [before, now].map((o) => o && { ...o[list].find((x) => x[name] === key), at_ms: o.at_ms });
  return perSecond(current, old, count);
}

function workloadTable(o) {
  const columns = [["Workload"], ["Breaker"], ["Held back by"], ["Lag", "n"], ["Lag in time", "n"], ["Delivered", "n"], ["Rate", "n"], ["In flight", "n"], ["Retried", "n"], ["Dead letters", "n"], ["Trouble", "wrap"]];
  return table("Workloads", columns, o.workloads.map((w) => [
    [link(workloadPath(w), w.key), w.role ? [" ", roleBadge(w.role)] : ""], state(w.breaker), w.bound ? el("span", { title: w.why }, bound(w.bound)) : "", lag(w), lagTime(w), number(w.delivered),
    rate(o, "workloads", "key", w.key, "delivered"), number(w.in_flight), number(w.retried), number(w.dead_lettered), w.troubles.join("; "),
  ]), "No workload yet. Deploy one: switchyard config deploy -f workload.yaml --execute");
}

const routesList = (o) => routesTable(o.routes, (name) => rate(o, "routes", "name", name, "copied"), lagTime);

function incidents(list) {
  if (!list.length) return el("p", { class: "quiet" }, "None.");
  return el("div", {}, list.map(incident));
}

// The headline: what needs a person, or that all is well.
function verdict(o) {
  const wrong = [];
  if (!o.leader) wrong.push([link("/activity", "no leader"), "no worker leads; jobs that lose their worker wait"]);
  for (const w of o.workers) if (w.state === "dead" && w.silent_s < NEWS_S) wrong.push([w.worker, `no heartbeat for ${duration(w.silent_s)}`]);
  for (const w of o.workers) if (clockWords(w)) wrong.push([link(workerPath(w.worker), w.worker), clockWords(w)]);
  for (const w of o.workloads) {
    const words = [];
    if (w.breaker === "open" || w.breaker === "half-open") words.push(`its receiver is away (breaker ${w.breaker})`);
    if (w.waiting) words.push(`${w.waiting} of ${w.partitions} partitions wait for a worker`);
    else if (!w.partitions && !rests(w)) words.push("no partition is assigned yet");
    if (["lease", "health", "head-of-line"].includes(w.bound)) words.push(w.why);
    words.push(...w.troubles.filter((trouble) => !w.waiting || !trouble.includes("worker")));
    if (words.length) wrong.push([link(workloadPath(w), w.key), words.join("; ")]);
  }
  for (const r of o.routes) {
    const words = r.waiting ? [`${r.waiting} of ${r.partitions} partitions wait for a worker`] : [];
    if (!r.partitions && !r.paused) words.push("it copies nothing; its page says why");
    words.push(...r.troubles.filter((trouble) => !r.waiting || !trouble.includes("worker")));
    if (words.length) wrong.push([link(routePath(r.name), r.name), words.join("; ")]);
  }
  const firing = o.totals.alerts_firing;
  if (firing) wrong.push([link("/alerts", firing === 1 ? "1 alert fires" : `${number(firing)} alerts fire`), "the audit found something that needs a person"]);
  // Most open incidents are also troubles of a workload or route above.
  if (!wrong.length) for (const i of o.incidents) if (i.open) wrong.push([i.kind, `${i.subject}: ${i.message}`]);
  if (!wrong.length) return el("p", { class: "verdict good" }, o.workloads.length ? "All workloads flow." : o.routes.length ? "All routes flow." : "Nothing runs yet.");
  return el("div", { class: "verdict bad" }, el("b", {}, wrong.length === 1 ? "One thing needs attention" : `${wrong.length} things need attention`),
    el("ul", {}, wrong.map(([who, what]) => el("li", {}, who, `: ${what}`))));
}

function overviewPage(o) {
  return [
    el("h1", {}, `Region ${o.region}`), verdict(o),
    tiles([["workloads", number(o.totals.workloads)], ["live workers", number(o.totals.workers)], ["lag, messages", number(o.totals.lag_messages)], ["in flight", number(o.totals.in_flight)], ["leader's term", number(o.term)]]),
    el("h2", {}, "Workloads"), workloadTable(o),
    o.routes.length ? [el("h2", {}, "Routes"), routesList(o)] : "",
    el("h2", {}, "Workers"),
    workersTable(o.workers),
    el("h2", {}, "Incidents"), incidents(o.incidents),
  ];
}

/** What is shown in the place of a key or value that is not in its dead letter. */
const leftOut = (bytes) => bytes == null ? null : `${number(bytes)} bytes, not in the letter`;

function workloadPage(w, dlq, size) {
  const s = w.status;
  const columns = [["Topic"], ["Partition", "n"], ["State"], ["Lag", "n"], ["Lag in time", "n"], ["Committed", "n"], ["High watermark", "n"], ["Tracker", "n"], ["In flight", "n"], ["Delivered", "n"], ["Epoch", "n"], ["Trouble", "wrap"], ["Worker"], ["Since"], ["Why there", "cut"]];
  const rows = w.partitions.map((p) => {
    const query = p.topic === s.topic ? "" : `?topic=${encodeURIComponent(p.topic)}`;
    return [link(`${workloadPath(s)}/partitions/${p.partition}${query}`, p.topic), String(p.partition), state(p.state), number(p.lag_messages), lagTime(p),
      number(p.committed), number(p.high_watermark), share(p.tracker_capacity ? p.tracker_used / p.tracker_capacity : null), number(p.in_flight), number(p.delivered), number(p.epoch), p.trouble,
      p.worker ? [link(workerPath(p.worker), p.worker), p.wish ? el("div", {}, pill(`wanted on ${p.wish}`, "warn")) : ""] : "nobody", p.since_ms ? clock(p.since_ms) : "", p.reason];
  });
  const dead = dlq.items.map((m) => [clock(m.at_ms), `${m.origin.topic}-${m.origin.partition} @ ${m.origin.offset}`, m.code, m.reason, m.attempt, leftOut(m.left_out_key_bytes) ?? m.key?.text ?? m.key?.base64 ?? "null", leftOut(m.left_out_bytes) ?? (m.value?.text ?? m.value?.base64 ?? "null").slice(0, 300)]);
  return [
    where(link("/workloads", "Workloads")), el("h1", {}, s.key), roleLine(s.role),
    s.bound === "passive" ? "" : pauses(s.key, w.partitions.some((p) => p.state !== "paused"), w.partitions.some((p) => p.state === "paused"), "workload pause|resume|reset"),
    tiles([["breaker", s.breaker], ["lag, messages", lag(s)], ["lag in time", lagTime(s)], ["in flight", number(s.in_flight)], ["delivered", number(s.delivered)], ["dead letters", number(s.dead_lettered)], ...(s.role ? [["finished in another region", number(s.passed_over)]] : [])]),
    s.breaker === "closed" || s.breaker === "unknown" ? "" : el("div", { class: "note" }, "A receiver is away or overloaded. Messages wait here without losing attempts, and flow again once it answers."),
    s.troubles.map((trouble) => el("div", { class: "note" }, trouble)),
    ...flowSections(w), ...sizingSection(size),
    el("h2", {}, "Partitions"), table("Partitions", columns, rows, s.bound === "passive" ? "It runs in another region." : "No region runs it yet."),
    el("h2", {}, "Dead letters, newest first"),
    el("p", { class: "quiet" }, dlq.queue ? `${number(dlq.queue.messages)} in ${dlq.queue.topic}` : ""),
    table("Dead letters", [["When"], ["Origin"], ["Code"], ["Reason", "wrap"], ["Attempt", "n"], ["Key"], ["Value", "wrap"]], dead, "The dead letter queue is empty."),
    el("h2", {}, "Definition"), el("p", { class: "quiet" }, `deployed ${clock(w.deployed.at_ms)} by ${w.deployed.by}`),
    el("pre", { tabindex: "0" }, JSON.stringify(w.definition, null, 2)),
  ];
}

// Buttons have no listeners of their own, because the page is patched every second (see `patch`). One listener
// finds the pressed button.
function pauses(of, canPause, canResume, command, more = "") {
  const button = (verb, text) => el("button", { type: "button", "data-act": verb, "data-of": of }, text);
  return el("p", { class: "acts" },
    canPause ? button("pause", "Pause") : "", canResume ? button("resume", "Resume") : "", more, el("span", { class: "quiet" }, ` or: switchyard ${command} ${of}`));
}

async function act(button) {
  const { act: verb, of } = button.dataset;
  if (verb !== "pause" && verb !== "resume") return other(button);
  const what = page === "routes" ? "Copy" : "Deliver";
  if (!confirm(verb === "pause" ? `${what} nothing of ${of} until you resume it?` : `${what} ${of} again?`)) return;
  button.disabled = true;
  try {
    const answer = await fetch(`${api}/${verb}`, { method: "POST", headers: { "X-Switchyard-Actor": "console" }, signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error((await answer.json()).detail);
  } catch (error) {
    alert(`Not done: ${error.message}`);
  }
  button.disabled = false;
}

async function other(button) {
  button.disabled = true;
  try {
    const told = await (page === "failover" ? failoverAct(region, button.dataset) : page === "audit" ? auditAct(button.dataset) : page === "alerts" ? alertAct(button.dataset) : routeAct(api, button.dataset));
    if (told) alert(told);
  } catch (error) {
    alert(`Not done: ${error.message}`);
  }
  button.disabled = false;
}

main.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (button) act(button);
});

function strip(t) {
  const size = Math.max(t.end - t.base, 1);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "strip");
  svg.setAttribute("viewBox", "0 0 1000 56");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${t.unfinished} of ${t.end - t.base} offsets unfinished`);
  const bar = (start, end, kind) => {
    const rect = document.createElementNS(SVG, "rect");
    rect.setAttribute("x", (((start - t.base) / size) * 1000).toFixed(2));
    rect.setAttribute("width", Math.max((((end - start) / size) * 1000), 0.6).toFixed(2));
    rect.setAttribute("height", "56");
    rect.setAttribute("class", kind);
    svg.append(rect);
  };
  if (t.end > t.base) bar(t.base, t.end, "k-finished");
  for (const [start, end] of t.unfinished_ranges) bar(start, end, "k-open");
  for (const offset of t.in_flight_offsets) bar(offset, offset + 1, "k-flight");
  return svg;
}

function room(t) {
  const used = Math.max(0, t.capacity - t.room);
  const meter = el("meter", { min: 0, max: t.capacity, high: t.capacity * 0.8, value: used, "aria-label": "room used" });
  return el("p", { class: "room" }, meter, ` ${number(used)} of ${number(t.capacity)} places taken, ${number(t.room)} free`);
}

function trackerPage(t) {
  const [, key, topic, partition] = t.job.split(":");
  const [group, of] = key.split("/");
  const legend = [["k-finished", "finished, waits for those before it"], ["k-flight", "in flight"], ["k-open", "waiting for its turn or its next try"]];
  return [
    where(link("/workloads", "Workloads"), link(workloadPath({ group, topic: of }), key)),
    el("h1", {}, `${topic}, partition ${partition}`),
    tiles([["committed (base)", number(t.base)], ["fetched (end)", number(t.end)], ["high watermark", t.high_watermark < 0 ? "unknown" : number(t.high_watermark)], ["in flight", number(t.in_flight)], ["unfinished", number(t.unfinished)], ["epoch", number(t.epoch)]]),
    el("h2", {}, `The window from ${number(t.base)} to ${number(t.end)}`), strip(t),
    el("p", { class: "legend" }, legend.map(([kind, text]) => el("span", {}, el("i", { class: kind }), text))),
    room(t),
    el("p", { class: "quiet" }, t.end === t.base ? "Everything fetched is finished; nothing holds back the commit." : `The commit stands at ${number(t.base)}: that offset is not finished. ${number(t.acked)} acknowledged and ${number(t.nacked)} moved to other topics wait behind it.`),
    t.trouble ? el("div", { class: "note" }, t.trouble) : "",
    t.unfinished_ranges.length ? el("p", { class: "quiet" }, `To take a message out of the way: switchyard tracker stash ${key} ${partition} ${t.unfinished_ranges[0][0]}${topic === of ? "" : ` --topic ${topic}`}`) : "",
    el("p", { class: "quiet" }, `owned by ${t.worker}`),
  ];
}

function activityPage(list) {
  const what = (a) => ({
    "workload-put": () => `workload ${a.key} deployed by ${a.actor}`,
    "workload-deleted": () => `workload ${a.key} deleted by ${a.actor}`,
    "route-put": () => `route ${a.key} deployed by ${a.actor}`,
    "route-deleted": () => `route ${a.key} deleted by ${a.actor}`,
    "audit-put": () => `audit plan ${a.key.replace("audit:", "")} deployed by ${a.actor}`,
    "audit-deleted": () => `audit plan ${a.key.replace("audit:", "")} deleted by ${a.actor}`,
    "alert-put": () => `alert ${a.key.replace("alert:", "")} deployed by ${a.actor}`,
    "alert-deleted": () => `alert ${a.key.replace("alert:", "")} deleted by ${a.actor}`,
    "alert-state": () => `alert ${a.rule} of ${a.topic}, ${a.from_tier} to ${a.to_tier}, is ${a.state}`,
    "failover-put": () => `failover definition ${a.key.replace("failover:", "")} deployed by ${a.actor}`,
    "failover-deleted": () => `failover definition ${a.key.replace("failover:", "")} deleted by ${a.actor}`,
    "failover-run": () => `failover ${a.id} to ${a.to} ${a.state}${a.forced ? ", forced" : ""} by ${a.actor}${[a.reason, a.result].filter(Boolean).map((words) => `: ${words}`).join("")}`,
    "role-put": () => `${a.key} ${a.state === "moving" ? "moves to" : "is active in"} region ${a.region} under epoch ${a.epoch}, by ${a.actor}${a.reason ? `: ${a.reason}` : ""}`,
    "role-released": () => `region ${a.region} has released ${a.key} for epoch ${a.epoch}`,
    claim: () => `${a.worker} leads term ${a.term}`,
    assignment: () => (a.release ? `${a.worker} must release ${a.job}: ${a.reason}` : `${a.job} goes to ${a.worker || "no worker"} under epoch ${a.epoch}: ${a.reason}`),
    released: () => `${a.worker} released ${a.job}: ${a.reason}`,
    drain: () => (a.draining ? `${a.worker} hands over its jobs and gets no more, by ${a.actor}` : `${a.worker} gets jobs again, by ${a.actor}`),
    "move-wish": () => !a.worker ? `the wish to move ${a.job} was canceled by ${a.actor}` : `${a.job} is wanted on ${a.worker} by ${a.actor}${a.why ? `: ${a.why}` : ""}`,
    moving: () => (a.move ? `${a.key} is paused to be moved to cluster ${a.to} by ${a.actor}` : `the move of ${a.key} was given up by ${a.actor}`),
    begun: () => `the start of ${a.key} was recorded`,
    paused: () => `${a.partition < 0 ? "all" : `partition ${a.partition}`} of ${a.key} ${a.paused ? "paused" : "resumed"} by ${a.actor}`,
    "destination-topic": () => `topic ${a.topic} in ${a.cluster} changed for route ${a.routes.join(", ")}: ${a.changes.map(([name, old, now]) => `${name} ${old === null ? "" : `from ${old} to `}${now ?? "the default"}`).join(", ")}`,
    "operator-act": () => `${a.action} of ${a.subject} by ${a.actor}: ${a.detail}`,
  })[a.event]?.() ?? a.event;
  return [el("h1", {}, "Activity"), table("Activity", [["When"], ["What", "wrap"], ["Counted"]], list.items.map((a) => [clock(a.at_ms), what(a), a.counted ? "" : pill("refused", "warn")]), "Nothing yet.")];
}

// Changes `old` into `next` only where they differ. So a link keeps its focus and a click in progress, and
// selections and scroll positions stay.
function patch(old, next) {
  if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName) return old.replaceWith(next);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  patchChildren(old, [...next.childNodes]);
}

function patchChildren(parent, nexts) {
  const olds = [...parent.childNodes];
  nexts.forEach((next, i) => (i < olds.length ? patch(olds[i], next) : parent.append(next)));
  for (const old of olds.slice(nexts.length)) old.remove();
}

function show(nodes) {
  heard = Date.now();
  patchChildren(main, nodes.flat().map((n) => (n instanceof Node ? n : document.createTextNode(n))));
  tell("on", "live");
  banner.hidden = true;
}

function tell(kind, words) {
  if (live.textContent === words) return; // said again, a screen reader would repeat it
  live.className = `live ${kind}`;
  live.textContent = words;
}

// The page's content may be old: a line above it says so, with its age.
function failed(error) {
  tell("off", "not live");
  banner.hidden = !heard;
  if (heard) banner.textContent = `${error.message}. What you see is ${duration((Date.now() - heard) / 1000)} old.`;
  else patchChildren(main, [el("h1", {}, "Nothing to show"), el("div", { class: "note" }, error.message)]);
}

async function get(url) {
  let answer;
  try {
    answer = await fetch(url, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE_MS) });
  } catch {
    throw new Error("The worker does not answer; this page tries again every second");
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(`${body.title}: ${body.detail ?? answer.statusText}`);
  return body;
}

async function poll(load, everyMs = 1000) {
  for (;;) {
    try {
      show(await load());
    } catch (error) {
      failed(error);
    }
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}

function follow(render) {
  let source;
  let said = Date.now();
  const open = () => {
    source?.close();
    said = Date.now();
    source = new EventSource("/api/v1/events");
    source.onmessage = (event) => {
      said = Date.now();
      const overview = JSON.parse(event.data);
      show(render(overview));
      if (!before || overview.at_ms > before.at_ms) before = overview;
    };
  };
  // By the clock, not by `onerror`: a worker that hangs causes no error event, and a worker that answers 503
  // while it starts ends the stream.
  setInterval(() => {
    if (Date.now() - said > SILENT_MS || source.readyState === EventSource.CLOSED) {
      failed(new Error("The worker does not answer; this page tries again every few seconds"));
      if (Date.now() - said > SILENT_MS) open();
    }
  }, 1000);
  open();
}

const page = path[0] ?? "";
for (const anchor of document.querySelectorAll("nav a")) {
  if (anchor.pathname === `/${page}`) anchor.setAttribute("aria-current", "page");
}
document.title = `${path.length ? path.slice(-2).join("/") : "Overview"} · Switchyard`;
const api = `/api/v1/${page}/${path.slice(1, 3).map(encodeURIComponent).join("/")}`;
if (page === "") follow(overviewPage);
else if (page === "workloads" && path.length === 1) follow((o) => [el("h1", {}, "Workloads"), workloadTable(o)]);
else if (page === "workloads" && path.length === 3) {
  let dead = { items: [] };
  let asked = 0;
  let size = null;
  poll(async () => {
    if (Date.now() - asked > 10000) { // reading a queue costs more than reading a status
      asked = Date.now();
      const queue = api.replace("/workloads/", "/dlq/");
      dead = await get(`${queue}/messages?limit=10`).catch(() => dead);
      dead.queue = await get(queue).catch(() => dead.queue);
      size = await get(`${api}/sizing`).catch(() => size);
    }
    return workloadPage(await get(api), dead, size);
  });
} else if (page === "workloads") poll(async () => trackerPage(await get(`${api}/partitions/${encodeURIComponent(path[4])}/tracker${location.search}`)));
else if (page === "routes" && path.length === 1) follow((o) => [el("h1", {}, "Routes"), routesList(o)]);
else if (page === "routes") {
  let topics = null;
  let asked = 0;
  let then = null;
  poll(async () => {
    if (Date.now() - asked > 5000) { // the leader is asked for them, whose time is dear
      asked = Date.now();
      topics = await get(`${api}/topics?limit=500`).catch(() => topics);
    }
    const route = await get(api);
    const now = { ...route.status, at_ms: Date.now() };
    const speed = perSecond(now, then, "copied");
    then = now;
    return routePage(route, topics, speed, { lagTime, pauses, tiles, where });
  });
} else if (page === "placement") {
  poll(async () => {
    const [workers, sizing, jobs] = await Promise.all([get(placementPaths.workers), get(placementPaths.sizing), get(placementPaths.jobs)]);
    return placementPage(workers.items, sizing, jobs, workloadPath);
  }, 2000);
} else if (page === "failover") {
  const shown = new URLSearchParams(location.search).get("run");
  poll(async () => {
    const [told, runs, run] = await Promise.all([get("/api/v1/failover"), get("/api/v1/failover/runs?limit=50"), shown ? get(`/api/v1/failover/${encodeURIComponent(shown)}`) : null]);
    region = told.region;
    return [...failoverPage(told, workloadPath), ...runsSection(runs.items), ...(run ? runSections(run, tiles) : [])];
  });
} else if (page === "audit") poll(auditLoader(get, path[1], { tiles, where }), 3000);
else if (page === "alerts") poll(alertLoader(get, path[1], { tiles, where }), 2000);
else if (page === "activity") poll(async () => activityPage(await get("/api/v1/activity?limit=200")));
