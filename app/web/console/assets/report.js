// The report over all regions, as Spark's job wrote it.

import { duration, el, link, number, pill, table } from "./dom.js";
import { bytes } from "./flow.js";
import { charts } from "./report_chart.js";
import { timeline } from "./report_timeline.js";

const GOOD = { ok: "good", provisional: "", late: "warn", "absent-audit": "warn", lossy: "bad", duplicated: "bad", corrupted: "bad" };
const ms = (n) => (n === null || n === undefined ? "unknown" : duration(n / 1000));
const lost = (n) => (n ? el("b", {}, number(n)) : number(n ?? 0));
const count = (n) => (n < 0 ? "unknown" : number(n));
const states = (found) => Object.entries(found).map(([name, windows]) => [pill(`${name} ${number(windows)}`, GOOD[name] ?? ""), " "]);
const audit = (topic) => link(`/audit/${encodeURIComponent(topic)}`, topic);
const whole = (n) => (n === null || n === undefined ? "not audited" : number(n)); // what an audit would have counted
const lostOf = (n) => (n === null || n === undefined ? "not audited" : lost(n));
const day = (iso) => iso.replace("T", " ").replace(/\.\d+|Z$/g, "");

function topics(rows) {
  const columns = [["Topic"], ["Owners"], ["Records", "n"], ["Bytes", "n"], ["Missing", "n"], ["Too many", "n"], ["Windows"]];
  return table("Topics", columns, rows.map((r) => [audit(r.topic), r.owners.join(", "), number(r.records), bytes(r.bytes), lost(r.missing), lost(r.extra), states(r.states)]), "No topic was counted.");
}

function pairs(rows) {
  const columns = [["Topic"], ["Region"], ["From"], ["To"], ["Group"], ["Records", "n"], ["Arrived", "n"], ["Missing", "n"], ["Too many", "n"], ["Later by", "n"], ["Windows"]];
  return table("Tiers", columns, rows.map((r) => [audit(r.topic), r.region ?? "", r.from_tier, r.to_tier, r.group ?? "", number(r.from_count), number(r.to_count), lost(r.missing), lost(r.extra), ms(r.lag_ms), states(r.states)]), "No two tiers were compared.");
}

function traffic(rows) {
  const columns = [["Topic"], ["Tier"], ["Cluster"], ["Records", "n"], ["Bytes", "n"], ["Doubles", "n"], ["Late", "n"], ["p50", "n"], ["p95", "n"], ["p99", "n"]];
  return table("Traffic", columns, rows.map((r) => [audit(r.topic), r.tier, r.cluster, number(r.records), bytes(r.bytes), number(r.duplicates), number(r.late), ms(r.p50_ms), ms(r.p95_ms), ms(r.p99_ms)]), "No traffic.");
}

function tiers(rows) {
  const columns = [["Cluster or group"], ["Records", "n"], ["Bytes", "n"], ["Doubles", "n"], ["p50", "n"], ["p95", "n"], ["p99", "n"]];
  return table("Latencies by cluster and group", columns, rows.map((r) => [r.name, number(r.records), bytes(r.bytes), number(r.duplicates), ms(r.p50_ms), ms(r.p95_ms), ms(r.p99_ms)]), "Nothing was counted.");
}

function untimed(rows) {
  const columns = [["Topic"], ["Tier"], ["Cluster"], ["Records", "n"], ["Bytes", "n"], ["Doubles", "n"]];
  return table("Records without a time", columns, rows.map((r) => [audit(r.topic), r.tier, r.cluster, number(r.records), bytes(r.bytes), number(r.duplicates)]), "None.");
}

function windows(rows) {
  const columns = [["Start"], ["Topic"], ["Region"], ["From"], ["To"], ["Group"], ["Window"], ["Records", "n"], ["Arrived", "n"], ["Missing", "n"], ["Too many", "n"], ["Not heard"]];
  return table("Windows that are not as they should be", columns, rows.map((r) => [day(r.start), audit(r.topic), r.region, r.from_tier, r.to_tier, r.group ?? "", pill(r.state, GOOD[r.state] ?? ""), number(r.from_count), number(r.to_count), lost(r.missing), lost(r.extra), r.absent]), "All are as they should be.");
}

function owners(rows) {
  const columns = [["Owner"], ["Workloads", "n"], ["Not audited", "n"], ["Topics' records", "n"], ["Topics' missing", "n"], ["Finished", "n"], ["Doubles", "n"], ["p50", "n"], ["p95", "n"], ["p99", "n"], ["Ready", "n"], ["Not ready", "n"], ["Core hours", "n"]];
  return table("Owners", columns, rows.map((r) => [r.owner, number(r.workloads), lost(r.not_audited), whole(r.records), lostOf(r.missing), whole(r.delivered), whole(r.duplicates), ms(r.p50_ms), ms(r.p95_ms), ms(r.p99_ms), number(r.ready), lost(r.not_ready), r.core_hours.toFixed(2)]), "No owner.");
}

function workloads(rows) {
  const columns = [["Region"], ["Workload or route"], ["Owner"], ["Jobs", "n"], ["Workers", "n"], ["Lag", "n"], ["Core hours", "n"]];
  return table("Workloads and routes", columns, rows.map((r) => [r.region, r.key, r.owner, number(r.jobs), number(r.workers), count(r.lag_messages), r.core_hours.toFixed(2)]), "None is deployed.");
}

function deliveries(rows) {
  const columns = [["Region"], ["Workload"], ["Audited"], ["Finished", "n"], ["Missing", "n"], ["Too many", "n"], ["Doubles", "n"], ["p50", "n"], ["p95", "n"], ["p99", "n"]];
  const counted = (r) => (r.audited === "deliveries" ? [number(r.delivered), lost(r.missing), lost(r.extra), number(r.duplicates), ms(r.p50_ms), ms(r.p95_ms), ms(r.p99_ms)] : Array(7).fill("–"));
  const audited = (r) => (r.audited === "not audited" ? pill(r.audited, "warn") : r.audited);
  return table("What workloads have finished", columns, rows.filter((r) => r.audited).map((r) => [r.region, r.key, audited(r), ...counted(r)]), "No workload is deployed.");
}

function quarantine(rows) {
  const columns = [["Region"], ["Table"], ["Records", "n"], ["Why", "wrap"]];
  return table("Quarantine", columns, rows.map((r) => [r.region, r.table, number(r.count), r.reason]), "Every record could be read.");
}

function readiness(rows) {
  const columns = [["Workload"], ["Region"], ["To"], ["Ready"], ["Why not", "wrap"]];
  return table("Readiness", columns, rows.map((r) => [r.workload, r.region, r.to, r.ready ? pill("ready", "good") : pill("not ready", "bad"), r.why.join("; ")]), "There is no other region, or no workload.");
}

export function reportPage(r, tiles) {
  if (!r.generated) return [el("h1", {}, "Report"), el("p", { class: "quiet" }, r.detail)];
  const total = r.totals;
  const more = (part, which) => (r.cut?.[part] ? el("p", { class: "where" }, `${number(r.cut[part])} ${which} not shown.`) : "");
  return [
    el("h1", {}, "Report"),
    el("p", { class: "quiet" }, `All regions, ${day(r.from)} to ${day(r.to)} UTC; made ${day(r.generated)} UTC. `, r.complete ? "" : pill("being written: not all of it is here", "warn")),
    tiles([["regions", number(r.regions.length)], ["topics", number(total.topics)], ["records", number(total.records)], ["missing", number(total.missing)], ["too many", number(total.extra)], ["windows compared", number(total.windows)]]),
    el("h2", {}, "Records over time"), charts(r.series), more("series", "smaller lines are"),
    el("h2", {}, "What happened"), timeline(r.timeline), more("timeline", "older ones are"),
    el("h2", {}, "Topics"), topics(r.topics),
    el("h2", {}, "From tier to tier"), pairs(r.pairs),
    el("h2", {}, "Windows that are not as they should be"), windows(r.windows), more("windows", "less bad ones are"),
    el("h2", {}, "Traffic"), traffic(r.traffic),
    el("h2", {}, "Latencies by cluster and group"), tiers(r.tiers), more("tiers", "smaller ones are"),
    el("h2", {}, "Records without a time"), untimed(r.untimed), more("untimed", "smaller ones are"),
    el("h2", {}, "Owners"), owners(r.owners), r.owners.length ? el("p", { class: "where" }, "What is said of topics is of their whole way, for all who read them, and counts for each of their owners; what was finished is of the owner's own workloads.") : "",
    el("h2", {}, "What workloads have finished"), deliveries(r.workloads),
    el("h2", {}, "Workloads and routes"), workloads(r.workloads),
    el("h2", {}, "Failover readiness"), readiness(r.readiness),
    el("h2", {}, "Quarantine"), quarantine(r.quarantine), more("quarantine", "records of rarer reasons are"),
  ];
}
