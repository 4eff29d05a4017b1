// What happened in all regions, the newest first; kinds can be hidden, and stay so while the page is shown.

import { el, number, pill, table } from "./dom.js";

const KINDS = { audit: "bad", alert: "bad", failover: "warn", role: "warn", incident: "warn", leader: "", operator: "" };
const hidden = new Set();

const when = (iso) => iso.replace("T", " ").replace("Z", "");

function until(row) {
  if (row.until === null) return pill("not over", "warn");
  if (row.until_ms === row.from_ms) return "";
  return when(row.until).slice(0, 10) === when(row.from).slice(0, 10) ? when(row.until).slice(11) : when(row.until);
}

// Pages are patched, not replaced (console.js): who listens must not be a part of one.
addEventListener("change", ({ target }) => {
  const { kind } = target.dataset ?? {};
  if (!kind) return;
  if (target.checked) hidden.delete(kind);
  else hidden.add(kind);
  for (const row of document.querySelectorAll("tr[data-of]")) row.hidden = hidden.has(row.dataset.of);
});

export function timeline(rows) {
  const columns = [["From (UTC)"], ["Until"], ["Region"], ["Kind"], ["What", "wrap"], ["Who"]];
  const shown = table("What happened", columns, rows.map((r) => [when(r.from), until(r), r.region, pill(r.kind, KINDS[r.kind] ?? ""), r.what, r.who]), "Nothing that was told.");
  shown.classList.add("events");
  shown.querySelectorAll("tbody tr").forEach((row, i) => {
    row.dataset.of = rows[i].kind;
    row.hidden = hidden.has(rows[i].kind);
  });
  const many = (kind) => rows.filter((row) => row.kind === kind).length;
  const box = (kind) => el("label", {}, el("input", { type: "checkbox", "data-kind": kind, ...(hidden.has(kind) ? {} : { checked: "" }) }), ` ${kind} ${number(many(kind))}`);
  return rows.length ? [el("p", { class: "acts" }, Object.keys(KINDS).map(box)), shown] : [shown];
}
