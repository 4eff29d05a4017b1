// The page of regions: the active one of each workload, and how recent the other regions' messages are.

import { clock, duration, el, link, number, pill, table } from "./dom.js";

const passive = (role) => role.mode === "active-passive" && role.region !== null && !role.active_here;
const chosen = (role) => (role.mode === "active-active" ? "primary" : "active");

// The role of a workload with a mode, beside its name; details are in the title.
export function roleBadge(role) {
  if (!role) return "";
  const title = role.region === null ? "its role is not recorded yet" : `${role.mode}, epoch ${role.epoch}, since ${clock(role.since_ms)}`;
  const badge = (text, kind) => el("span", { class: `pill ${kind}`, title }, text);
  if (role.region === null) return badge(`${chosen(role)} nowhere yet`, "warn");
  if (role.state === "moving") return badge(`moving to ${role.region}`, "warn");
  if (role.active_here) return badge(`${chosen(role)} here`, "good");
  return badge(`${chosen(role)} in ${role.region}`, "");
}

export function roleLine(role) {
  if (!role) return "";
  const known = role.region !== null;
  const facts = known ? [passive(role) ? "passive here" : "", role.mode, `epoch ${number(role.epoch)}`, `since ${clock(role.since_ms)}`, role.by ? `by ${role.by}` : "", role.reason] : [role.mode];
  return el("p", { class: "role" }, roleBadge(role), el("span", { class: "quiet" }, ` ${facts.filter(Boolean).join(" · ")} · `), link("/failover", "failover status"));
}

function regionsTable(regions) {
  const heard = (r) => (r.own ? "this one" : r.copy_age_s === null ? pill("no message from it yet", "warn") : `${duration(r.copy_age_s)} ago`);
  return table("Regions", [["Region"], ["Last heard", "n"]], regions.map((r) => [r.region, heard(r)]), "No region is known.");
}

// How positions here follow the active region's. Only the leader knows.
function offsets(sync) {
  if (!sync) return "";
  const good = sync.state === "synced" || sync.state === "unchanged";
  const age = sync.lag_s === null ? "" : `, in step ${duration(sync.lag_s)} ago`;
  return [pill(good ? "in step" : sync.state, good ? "good" : sync.state === "starting" ? "" : "warn"), ` ${sync.why}${good ? "" : age}`];
}

export function failoverPage(told, workloadPath) {
  const columns = [["Workload"], ["Mode"], ["Region"], ["Epoch", "n"], ["Since"], ["By"], ["Why", "wrap"], ["Offsets here", "wrap"], ["Let go"]];
  const rows = told.roles.map((r) => {
    const [group, topic] = r.workload.split("/");
    const gone = Object.entries(r.released).map(([region, epoch]) => `${region} (${epoch})`).join(", ");
    return [link(workloadPath({ group, topic }), r.workload), r.mode, roleBadge(r), number(r.epoch), r.since_ms === null ? "" : clock(r.since_ms), r.by, r.reason, offsets(r.offsets), gone];
  });
  return [
    el("h1", {}, `Regions, as ${told.region} knows them`), regionsTable(told.regions),
    told.returned ? el("div", { class: "note" }, `Region ${told.region} has just returned: ${told.returned.why}. ${told.returned.remedy}.`) : "",
    el("h2", {}, "Workloads of several regions"), table("Roles", columns, rows, "No workload has a mode. See spec.mode of a workload, and kind: Failover."),
    el("p", { class: "quiet" }, "switchyard failover plan --to REGION shows what a move would do."),
  ];
}
