// The missing records of a window. A button starts the search, because it reads the logs.

import { quoted } from "./audit_words.js";
import { el, number, pill, table } from "./dom.js";

const AGAIN_MS = 2000;
const MOST_SHOWN = 200;
const MOST_S = 600;
const WITH_LOGS = ["regional", "aggregate", "other"]; // clients of other tiers keep none: nothing is copied there
let named = null; // what was asked for last: { key, told } or { key, words }

const keyOf = (v) => [v.topic, v.from_tier, v.to_tier, v.start_ms].join("\n");
const options = (v) => `--topic ${quoted(v.topic)} --from-tier ${quoted(v.from_tier)} --to-tier ${quoted(v.to_tier)} --start ${v.start_ms}`;
const place = (at) => (at ? `${at.cluster}/${at.topic}-${at.partition} @ ${at.offset}` : "–");

function findings(told) {
  const columns = [["What"], ["Id"], ["Key"], ["Time"], ["At the source"], ["Copy"], ["Why", "wrap"]];
  const rows = told.items.slice(0, MOST_SHOWN).map((one) => [
    pill(one.kind, ["missing", "altered"].includes(one.kind) ? "bad" : "warn"), one.id ?? "–", one.key ?? "–", one.at ?? "–", place(one.source), place(one.copy), one.one_of > 1 ? `one of ${number(one.one_of)} alike; ${one.why}` : one.why,
  ]);
  const counts = Object.entries(told.counts).filter(([, n]) => n).map(([kind, n]) => `${number(n)} ${kind}`).join(", ");
  return [
    el("p", { class: told.complete ? "" : "note" }, counts || "Nothing differs in the logs now.", told.complete ? "" : " These are not all: some could not be named."),
    told.notes.map((words) => el("p", { class: "quiet" }, words)), table("Missing", columns, rows, "No record is named."),
    told.next || told.items.length > MOST_SHOWN ? el("p", { class: "quiet" }, "These are the first; the command, with -o csv, has all.") : "",
  ];
}

// For a verdict with a difference.
export function missingSection(v) {
  const asked = named?.key === keyOf(v) ? named : null;
  const data = { "data-act": "name", "data-of": v.topic, "data-from": v.from_tier, "data-to": v.to_tier, "data-start": v.start_ms };
  return [
    el("h2", {}, `Which records differ between ${v.from_tier} and ${v.to_tier}`),
    el("p", { class: "acts" }, el("button", { type: "button", ...data }, "Name them"), el("span", { class: "quiet" }, " reads the logs of both; or: "), el("code", {}, `switchyard audit missing ${options(v)}`)),
    asked?.words ? el("p", { class: "quiet" }, asked.words) : "", asked?.told ? findings(asked.told) : "",
    asked?.told?.counts.missing && [v.from_tier, v.to_tier].every((tier) => WITH_LOGS.includes(tier)) ? el("p", { class: "where" }, "To copy them again: ", el("code", {}, `switchyard audit copy-again ${options(v)}`)) : "",
  ].flat(Infinity);
}

// Does the button's action; returns the text to show.
export async function auditAct({ of, from, to, start }) {
  const wanted = { topic: of, from_tier: from, to_tier: to, start };
  const key = keyOf({ ...wanted, start_ms: start });
  const until = Date.now() + MOST_S * 1000;
  named = { key, words: "Reading the logs…" };
  try {
    for (;;) {
      const answer = await fetch(`/api/v1/audit/missing?${new URLSearchParams({ ...wanted, limit: MOST_SHOWN })}`, { signal: AbortSignal.timeout(30000) });
      const told = await answer.json();
      if (answer.status === 200) {
        named = { key, told };
        return "";
      }
      if (answer.status !== 202) throw new Error(answer.status === 404 && told.type === "about:blank" ? "this worker cannot name them" : told.detail);
      if (Date.now() > until) throw new Error("it takes too long; use the command");
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  } catch (error) {
    named = null;
    throw error;
  }
}
