// Failovers to this region: plans, their progress, and actions.

import { clock, duration, el, link, number, pill, table } from "./dom.js";

const KINDS = { planned: "", expired: "", executing: "warn", done: "good", aborted: "bad" };
const LEVELS = { ok: "good", warn: "warn", blocked: "bad" };
const DONE = ["active", "back", "left", "taken", "gone"];
export const runPath = (id) => `/failover?run=${encodeURIComponent(id)}`;

const button = (act, text, of = "") => el("button", { type: "button", "data-act": act, "data-of": of }, text);

export function runsSection(runs) {
  const columns = [["Failover"], ["State"], ["Workloads", "n"], ["By"], ["Planned"], ["Took", "n"], ["Why", "wrap"], ["Result", "wrap"]];
  const rows = runs.map((r) => [
    link(runPath(r.id), r.id), [pill(r.state, KINDS[r.state] ?? ""), r.forced ? [" ", pill("forced", "warn")] : ""], number(r.workloads), r.by, clock(r.made_ms),
    r.took_s === null ? "–" : duration(r.took_s), r.reason, r.result,
  ]);
  return [
    el("h2", {}, "Failovers to this region"), table("Failovers", columns, rows, "There was none yet. A plan changes nothing."),
    el("p", { class: "acts" }, button("plan", "Plan a failover to here…"), button("plan-forced", "Plan a forced one…"), button("failback", "Plan a failback…"),
      el("span", { class: "quiet" }, " or: switchyard failover plan --to REGION")),
  ];
}

function checks(plan) {
  const found = [...plan.checks.map((c) => ["regions", c]), ...plan.workloads.flatMap((w) => w.checks.map((c) => [w.workload, c]))];
  const order = Object.keys(LEVELS).reverse();
  found.sort(([, a], [, b]) => order.indexOf(a.level) - order.indexOf(b.level));
  const rows = found.map(([of, c]) => [pill(c.level, LEVELS[c.level]), of, c.name, c.detail, c.remedy]);
  return table("Preconditions", [["Level"], ["Of"], ["What"], ["Found", "wrap"], ["Remedy", "wrap"]], rows, "No check ran.");
}

function partitions(plan) {
  const columns = [["Workload"], ["Partition", "n"], ["Active in"], ["Goes on at", "n"], ["Read again, at most", "n"], ["Of these passed over", "n"], ["Not here yet, at least", "n"], ["Unreachable, at least", "n"], ["To deliver", "n"], ["Why", "wrap"]];
  const rows = plan.workloads.flatMap((w) => w.partitions.map((p) => [
    w.workload, String(p.partition), w.region, number(p.next_offset), number(p.again), number(p.passed_over), number(p.not_replicated), number(p.unreachable), number(p.lag), p.why,
  ]));
  return [plan.left_out ? el("div", { class: "note" }, plan.left_out) : "", table("Plan", columns, rows, "No partition is known."), plan.workloads.filter((w) => w.why).map((w) => el("div", { class: "note" }, `${w.workload}: ${w.why}`))];
}

export function runSections(r, tiles) {
  const acts = [];
  if (r.state === "planned") acts.push(button("execute", r.forced ? "Execute, forced" : "Execute", r.id), button("abort", "Abort", r.id));
  if (r.state === "executing") acts.push(r.forced ? "" : button("force", "Force it", r.id), button("abort", "Abort", r.id));
  const rows = r.rows.map((one) => [one.workload, one.region, pill(one.stage, one.stage === "active" ? "good" : DONE.includes(one.stage) ? "" : "warn"), one.epoch === null ? "–" : number(one.epoch), one.waits_for, one.remedy, one.note]);
  const columns = [["Workload"], ["From"], ["Stage"], ["Epoch", "n"], ["Waits for", "wrap"], ["Remedy", "wrap"], ["Note", "wrap"]];
  const facts = [`by ${r.by}`, r.reason, r.state === "planned" ? `may be executed until ${clock(r.expires_ms)}` : "", r.took_s === null ? "" : `${r.took_s.toFixed(1)} s`, r.back_of ? `moves back the workloads of ${r.back_of}` : "", r.result];
  const total = r.plan?.totals;
  return [
    el("h2", {}, [r.id, " ", pill(r.state, KINDS[r.state] ?? ""), r.forced ? [" ", pill("forced", "warn")] : ""]), el("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    r.waits_for ? el("div", { class: "note" }, `It waits for ${r.waits_for}: ${r.remedy}`) : "",
    acts.length ? el("p", { class: "acts" }, acts, el("span", { class: "quiet" }, ` or: switchyard failover execute|abort ${r.id}`)) : "",
    table("Workloads", columns, rows, "It has no workload."),
    r.plan ? el("h2", {}, "The plan") : "",
    total ? tiles([["partitions", number(total.partitions)], ["read again, at most", number(total.again)], ["of these passed over", number(total.passed_over)], ["not here yet, at least", number(total.not_replicated)], ["unreachable, at least", number(total.unreachable)], ["to deliver", number(total.lag)]]) : "",
    total?.as_of_ms ? el("p", { class: "quiet" }, `Messages that are not here are counted up to ${clock(total.as_of_ms)}; later ones in its cluster are not known here.`) : "",
    r.plan ? [el("h2", {}, "Preconditions"), checks(r.plan), el("h2", {}, "Partitions"), partitions(r.plan)] : el("p", { class: "quiet" }, "The plan is not kept any more."),
  ].flat(Infinity);
}

async function post(verb, body) {
  const headers = { "X-Switchyard-Actor": "console", "Content-Type": "application/json" };
  const answer = await fetch(`/api/v1/failover/${verb}`, { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(30000) });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail);
  return told;
}

async function plan(verb, body) {
  const reason = prompt("Why? The activity page shows it. A plan changes nothing.", "");
  if (reason === null) return "";
  const told = await post(verb, { ...body, reason: reason.slice(0, 300) });
  location.assign(runPath(told.id));
  return "";
}

// Does a button's action; returns the text to show.
export async function failoverAct(region, { act, of }) {
  if (act === "plan" || act === "plan-forced") return plan("plan", { to: region, force: act === "plan-forced" });
  if (act === "failback") return plan("failback", {});
  if (act === "abort") {
    if (confirm(`Abort ${of}? Workloads in progress go back to their region; those active here stay.`)) await post("abort", { id: of });
  } else {
    const force = act === "force";
    const how = force ? "its workloads become active here at once, even if their region still runs them" : "its workloads become active here";
    if (confirm(`Execute ${of}: ${how}?`)) await post("execute", { id: of, force });
  }
  return "";
}
