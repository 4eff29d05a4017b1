// What states of an audit mean, in words.

import { number, pill } from "./dom.js";

export const minus = "−";

// State -> its kind, and what it is called.
export const STATES = {
  ok: ["good", "arrived"], provisional: ["", "not over yet"], lossy: ["bad", "records missing"], duplicated: ["warn", "too many"],
  corrupted: ["bad", "contents differ"], late: ["warn", "late"], "absent-audit": ["warn", "audit absent"], "not-compared": ["", "not compared"],
};
export const quoted = (word) => (/^[\w.-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`); // for a shell
export const badge = (state) => pill(STATES[state]?.[1] ?? state, STATES[state]?.[0] ?? "");
export const PHASES = { open: "open", provisional: "over, waits for late ones", closed: "closed" };
const BY = { count: "counts", ids: "message ids", offsets: "offsets of the source" };

// A verdict in a sentence. Where an audit is absent nothing is said of loss.
export function sentence(v) {
  const of = `of ${number(v.from_count)} records at ${v.from_tier}`;
  const small = v.missing || v.extra ? `, within the tolerance: ${number(v.missing || v.extra)} ${v.missing ? "missing" : "too many"}` : "";
  const said = ({
    ok: () => `all ${of} are at ${v.to_tier}, by their ${BY[v.by] ?? v.by}${small}`,
    provisional: () => `not over yet: ${number(v.to_count)} ${of} are at ${v.to_tier} so far`,
    lossy: () => `${number(v.missing)} ${of} are missing at ${v.to_tier}`,
    duplicated: () => `${number(v.extra)} more at ${v.to_tier} than ${number(v.from_count)} at ${v.from_tier}`,
    corrupted: () => `as many at ${v.to_tier} as at ${v.from_tier}, ${number(v.to_count)}, but not the same: their ${BY[v.by] ?? v.by} differ`,
    late: () => (v.missing ? `${number(v.missing)} ${of} have not come to ${v.to_tier} yet, which lags` : `all ${of} are at ${v.to_tier}, some of them came after the window was closed`),
    "absent-audit": () => `the audit of ${v.absent.join(", ")} is absent: whether anything is missing is not known`,
  })[v.state]?.() ?? v.state;
  return v.remark ? `${said}; ${v.remark}` : said;
}
