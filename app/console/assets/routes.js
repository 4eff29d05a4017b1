// Routes: what is copied from where to where, how that fares, and what is not copied.

import { clock, el, link, number, pill, state, table } from "./dom.js";

export const routePath = (name) => `/routes/${encodeURIComponent(name)}`;
const workerPath = (worker) => `/placement?worker=${encodeURIComponent(worker)}`;

export function routesTable(routes, rate, lagTime) {
  const columns = [["Route"], ["From"], ["To"], ["Lag", "n"], ["Lag in time", "n"], ["Copied", "n"], ["Rate", "n"], ["Topics", "n"], ["Partitions", "n"], ["Trouble", "wrap"]];
  return table("Routes", columns, routes.map((r) => [
    [link(routePath(r.name), r.name), r.paused ? [" ", pill("paused", "warn")] : ""], r.from ?? "unknown", r.to ?? "unknown", number(r.lag_messages), lagTime(r), number(r.copied), rate(r.name),
    number(r.topics), number(r.partitions), r.troubles.join("; "),
  ]), "No route yet. Deploy one: switchyard config deploy -f route.yaml --execute");
}

function topicsSection(topics, from) {
  if (!topics || topics.read_s_ago === null) return [el("p", { class: "quiet" }, `The leader has not listed the topics of ${from} yet.`)];
  const columns = [["Topic"], ["Partitions", "n"], ["Copy"], ["Partitions", "n"], ["State"], ["Why", "wrap"]];
  const rows = topics.items.map((t) => [
    t.topic, number(t.partitions), t.copy ?? "–", t.copy ? (t.copy_partitions === null ? "none yet" : number(t.copy_partitions)) : "–", state(t.state), t.why,
  ]);
  const facts = [`${number(topics.others)} other topics of ${from} are not meant`, topics.next ? "These are the first; GET …/topics has all" : "", `listed ${number(topics.read_s_ago)} s ago`];
  return [table("Topics", columns, rows, `No topic of ${from} is meant by it.`), el("p", { class: "quiet" }, facts.filter(Boolean).join(" · "))];
}

// What is set, in one line each; all of it stands in the definition below.
function settings(spec) {
  const rename = spec.rename ?? {};
  const names = rename.names ? Object.entries(rename.names).map(([from, to]) => `${from} as ${to}`) : [];
  const limits = Object.entries(spec.limits ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  const facts = [
    ["topics", (spec.topics ?? []).join(", ")], ["except", (spec.exclude ?? []).join(", ") || "none"],
    ["named", [`${rename.from ?? "{topic}"} as ${rename.to ?? "{topic}"}`, ...names].join(", ")], ["limits", limits.join(", ") || "none"],
    ["begins at", spec.start ?? "earliest"], ["when records are gone", spec.onGap ?? "continue"],
  ];
  return table("Settings", [["What"], ["Setting", "wrap"]], facts, "");
}

export function routePage(r, topics, speed, { lagTime, pauses, tiles, where }) {
  const s = r.status;
  const columns = [["Topic"], ["Partition", "n"], ["State"], ["Lag", "n"], ["Lag in time", "n"], ["Committed", "n"], ["High watermark", "n"], ["Copied", "n"], ["Epoch", "n"], ["Trouble", "wrap"], ["Worker"], ["Since"], ["Why there", "cut"]];
  const rows = r.partitions.map((p) => [
    p.topic, String(p.partition), state(p.state), number(p.lag_messages), lagTime(p), number(p.committed), number(p.high_watermark), number(p.delivered), number(p.epoch), p.trouble,
    p.worker ? [link(workerPath(p.worker), p.worker), p.wish ? [" ", pill(`wanted on ${p.wish}`, "warn")] : ""] : "nobody", p.since_ms ? clock(p.since_ms) : "", p.reason,
  ]);
  return [
    where(link("/routes", "Routes")), el("h1", {}, s.name), el("p", {}, `${s.from} → ${s.to}`), pauses(s.name, !s.paused, s.paused, "route pause|resume"),
    tiles([["lag, messages", number(s.lag_messages)], ["lag in time", lagTime(s)], ["copied", number(s.copied)], ["rate", speed || "–"], ["topics", number(s.topics)], ["partitions", number(s.partitions)]]),
    s.paused ? el("div", { class: "note" }, "Paused: nothing is copied until it is resumed. Positions stay.") : "",
    s.troubles.map((trouble) => el("div", { class: "note" }, trouble)),
    el("h2", {}, "Topics"), ...topicsSection(topics, s.from),
    el("h2", {}, "Partitions"), table("Partitions", columns, rows, "Nothing is copied yet."),
    el("h2", {}, "Settings"), settings(r.definition.spec ?? {}),
    el("h2", {}, "Definition"), el("p", { class: "quiet" }, `deployed ${clock(r.deployed.at_ms)} by ${r.deployed.by}`),
    el("pre", { tabindex: "0" }, JSON.stringify(r.definition, null, 2)),
  ];
}
