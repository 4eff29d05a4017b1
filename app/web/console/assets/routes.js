// The pages of routes: what they copy, their progress, and what they do not copy.

import { clock, el, link, number, pill, state, table } from "./dom.js";

export const routePath = (name) => `/routes/${encodeURIComponent(name)}`;
const workerPath = (worker) => `/placement?worker=${encodeURIComponent(worker)}`;

// The share of copied records in unchanged batches.
const asTheyWere = (x, copied) => (copied ? `${Math.floor((100 * x.verbatim) / copied)}%` : "–");

// Offsets that retention removed before they were copied. They stay on the page, because they are lost.
const lost = (x) => el("span", { class: "pill bad", title: `gone from the source before they were copied, since copying began; the last found missing at ${clock(x.lost_ms)}` }, `${number(x.lost)} lost, last ${clock(x.lost_ms)}`);

export function routesTable(routes, rate, lagTime) {
  const columns = [["Route"], ["From"], ["To"], ["Lag", "n"], ["Lag in time", "n"], ["Copied", "n"], ["Rate", "n"], ["Verbatim", "n"], ["Topics", "n"], ["Partitions", "n"], ["Trouble", "wrap"]];
  return table("Routes", columns, routes.map((r) => [
    [link(routePath(r.name), r.name), r.paused ? [" ", pill("paused", "warn")] : "", r.halted ? [" ", pill("halted", "bad")] : "", r.limited ? [" ", pill("limited", "warn")] : "", r.lost ? [" ", lost(r)] : ""],
    r.from ?? "unknown", r.to ?? "unknown", number(r.lag_messages), lagTime(r), number(r.copied), rate(r.name), asTheyWere(r, r.copied),
    number(r.topics), number(r.partitions), r.troubles.join("; "),
  ]), "No route yet. Deploy one: switchyard config deploy -f route.yaml --execute");
}

function topicsSection(topics, from) {
  if (!topics || topics.read_s_ago === null) return [el("p", { class: "quiet" }, `The leader has not listed the topics of ${from} yet.`)];
  const columns = [["Topic"], ["Partitions", "n"], ["Copy"], ["Partitions", "n"], ["State"], ["Why", "wrap"]];
  const rows = topics.items.map((t) => [
    t.topic, number(t.partitions), t.copy ?? "–", t.copy ? (t.copy_partitions === null ? "none yet" : number(t.copy_partitions)) : "–", state(t.state), t.why,
  ]);
  const facts = [`the route does not match ${number(topics.others)} other topics of ${from}`, topics.next ? "These are the first; GET …/topics has all" : "", `listed ${number(topics.read_s_ago)} s ago`];
  return [table("Topics", columns, rows, `The route matches no topic of ${from}.`), el("p", { class: "quiet" }, facts.filter(Boolean).join(" · "))];
}

// The changes of the destination's topics, so that they match the source's.
function there(sync) {
  const done = [["create", "created"], ["partitions", "given partitions"], ["configuration", "configured"]].filter(([name]) => sync[name] !== false).map(([, text]) => text);
  const leave = (sync.leave ?? []).length ? `, but not ${sync.leave.join(", ")}` : "";
  return done.length ? `${done.join(", ")} as at the source${leave}` : "left as they are";
}

// The settings, a line each; the definition below has all of them.
function settings(spec, begins) {
  const rename = spec.rename ?? {};
  const names = rename.names ? Object.entries(rename.names).map(([from, to]) => `${from} as ${to}`) : [];
  const limits = Object.entries(spec.limits ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  const facts = [
    ["topics", (spec.topics ?? []).join(", ")], ["except", (spec.exclude ?? []).join(", ") || "none"],
    ["named", [`${rename.from ?? "{topic}"} as ${rename.to ?? "{topic}"}`, ...names].join(", ")], ["limits", limits.join(", ") || "none"],
    ["topics there", there(spec.sync ?? {})], ["begins at", spec.start === "latest" ? `the source's ends${begins ? ` of ${clock(begins)}` : ", not recorded yet"}` : "earliest"], ["when records are gone", spec.onGap ?? "continue"], ["read back and compared", spec.verify === "all" ? "every copy" : "a sample of what is fast"],
  ];
  return table("Settings", [["What"], ["Setting", "wrap"]], facts, "");
}

// Decisions for an operator: a partition that stopped at a gap, or has a batch that cannot be copied.
function needsSomebody(r) {
  const name = r.status.name;
  return r.partitions.filter((p) => p.halted || p.stuck).map((p) => {
    const [start, end] = p.stuck ?? [0, 0];
    const what = p.halted ? "is halted" : `cannot copy [${number(start)}, ${number(end)})`;
    const data = { "data-act": "skip", "data-of": name, "data-topic": p.topic, "data-partition": p.partition, "data-start": start, "data-end": end };
    return el("div", { class: "note" }, el("b", {}, `${p.topic}-${p.partition} ${what}: `), p.halted || p.trouble,
      start < end ? el("p", { class: "acts" }, el("button", { type: "button", ...data }, "Skip it"), el("span", { class: "quiet" }, ` or: switchyard route skip ${name} ${p.topic} ${p.partition} ${start} ${end}`)) : "");
  });
}

async function post(url, body) {
  const headers = { "X-Switchyard-Actor": "console", "Content-Type": "application/json" };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(30000) });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail);
  return told;
}

async function reset(api, name) {
  const to = prompt(`Where shall ${name} continue? earliest, latest, or a time such as 2h (ago) or 2026-01-31T12:00 (UTC)`, "2h");
  if (!to) return "";
  const where = ["earliest", "latest"].includes(to.trim()) ? { to: to.trim() } : { at: to.trim() };
  const { partitions } = await post(`${api}/reset`, where);
  const sum = (what) => partitions.reduce((all, p) => all + p[what], 0);
  if (!confirm(`${partitions.length} partitions: ${number(sum("again"))} offsets are copied again, ${number(sum("skipped"))} are left out. Reset?`)) return "";
  let done = 0;
  for (const topic of new Set(partitions.map((p) => p.topic))) { // what was shown is what is done
    const offsets = Object.fromEntries(partitions.filter((p) => p.topic === topic).map((p) => [p.partition, p.to]));
    done += (await post(`${api}/reset`, { topic, offsets, execute: true })).done;
  }
  return done === partitions.length ? "" : `${done} of ${partitions.length} partitions were reset; the activity says which`;
}

async function skip(api, { topic, partition, start, end }) {
  const path = `${api}/topics/${encodeURIComponent(topic)}/partitions/${partition}/skip`;
  const body = { start: Number(start), end: Number(end) };
  const { count } = await post(path, body);
  if (!confirm(`Leave ${number(count)} offsets of ${topic}-${partition} out of the copy? They are not kept anywhere else.`)) return "";
  await post(path, { ...body, execute: true });
  return "";
}

// Does a button's action, except pausing; returns the text to show.
export const routeAct = (api, data) => (data.act === "reset" ? reset(api, data.of) : skip(api, data));

export function routePage(r, topics, speed, { lagTime, pauses, tiles, where }) {
  const s = r.status;
  const columns = [["Topic"], ["Partition", "n"], ["State"], ["Lag", "n"], ["Lag in time", "n"], ["Committed", "n"], ["High watermark", "n"], ["Copied", "n"], ["Verbatim", "n"], ["Read back", "n"], ["Differ", "n"], ["Not read back", "n"], ["Left out", "n"], ["Lost", "n"], ["Barrier"], ["Epoch", "n"], ["Trouble", "wrap"], ["Worker"], ["Since"], ["Why there", "cut"]];
  const barrier = ({ barrier: b }) => (b ? el("span", { title: `source and copy, at ${clock(b.at_ms)}` }, `${number(b.source_end)} → ${number(b.target_end)}`) : "none yet");
  const rows = r.partitions.map((p) => [
    p.topic, String(p.partition), state(p.state), number(p.lag_messages), lagTime(p), number(p.committed), number(p.high_watermark), number(p.delivered), asTheyWere(p, p.delivered), number(p.compared), number(p.differing), number(p.uncompared), number(p.left_out), p.lost ? lost(p) : "0", barrier(p), number(p.epoch), p.trouble,
    p.worker ? [link(workerPath(p.worker), p.worker), p.wish ? el("div", {}, pill(`wanted on ${p.wish}`, "warn")) : ""] : "nobody", p.since_ms ? clock(p.since_ms) : "", p.reason,
  ]);
  return [
    where(link("/routes", "Routes")), el("h1", {}, s.name), el("p", {}, `${s.from} → ${s.to}`), pauses(s.name, !s.paused, s.paused, "route pause|resume|reset", el("button", { type: "button", "data-act": "reset", "data-of": s.name }, "Reset…")),
    tiles([["lag, messages", number(s.lag_messages)], ["lag in time", lagTime(s)], ["copied", number(s.copied)], ["rate", speed || "–"], ["copied verbatim", asTheyWere(s, s.copied)], ["read back, as sent", number(s.compared)], ["read back, differ", number(s.differing)], ["not read back", number(s.uncompared)], ["sources recreated", number(s.begun_anew)], ["destinations lost", number(s.destination_losses)], ["left out", number(s.left_out)], ["lost at the source", number(s.lost)], ["topics", number(s.topics)], ["partitions", number(s.partitions)]]),
    s.paused ? el("div", { class: "note" }, "Paused: nothing is copied until it is resumed. Positions stay.") : "",
    s.lost ? el("p", {}, lost(s), " Its source had dropped these offsets before they were copied: lengthen the topic's retention.") : "",
    s.limited ? el("div", { class: "note" }, "Its limits hold it back: spec.limits, its own, or routes of a higher priority on the same worker.") : "",
    ...(s.throttled ?? []).map((words) => el("div", { class: "note" }, `Throttled: ${words}.`)),
    ...needsSomebody(r), s.halted || s.stuck ? "" : s.troubles.map((trouble) => el("div", { class: "note" }, trouble)),
    el("h2", {}, "Topics"), ...topicsSection(topics, s.from),
    el("h2", {}, "Partitions"), table("Partitions", columns, rows, "Nothing is copied yet."),
    el("h2", {}, "Settings"), settings(r.definition.spec ?? {}, r.begins_ms),
    el("h2", {}, "Definition"), el("p", { class: "quiet" }, `deployed ${clock(r.deployed.at_ms)} by ${r.deployed.by}`),
    el("pre", { tabindex: "0" }, JSON.stringify(r.definition, null, 2)),
  ];
}
