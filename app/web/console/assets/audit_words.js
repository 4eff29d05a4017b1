// The states of an audit in words.

import { number, pill } from "./dom.js";

export const minus = "−";

// State -> its kind and its name.
export const STATES = {
  ok: ["good", "arrived"], provisional: ["", "not over yet"], lossy: ["bad", "records missing"], duplicated: ["warn", "too many"],
  corrupted: ["bad", "contents differ"], late: ["warn", "late"], "absent-audit": ["warn", "audit absent"], "not-compared": ["", "not compared"],
};
// A tier's name; the consumers' tier has the group's name, because groups are never added up.
export const tierOf = (tier, group) => (group ? `${tier} (${group})` : tier);
export const several = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
export const quoted = (word) => (/^[\w.-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`); // for a shell
export const badge = (state) => pill(STATES[state]?.[1] ?? state, STATES[state]?.[0] ?? "");
export const PHASES = { open: "open", provisional: "over, waits for late records", closed: "closed" };
const BY = { count: "counts", ids: "message ids", values: "message ids and values", offsets: "offsets of the source" };

// A verdict in a sentence. Without an audit it says nothing of loss.
export function sentence(v) {
  const to = tierOf(v.to_tier, v.group);
  const of = `of ${number(v.from_count)} records at ${v.from_tier}`;
  const small = v.missing || v.extra ? `, within the tolerance: ${number(v.missing || v.extra)} ${v.missing ? "missing" : "too many"}` : "";
  const said = ({
    ok: () => `all ${of} are at ${to}, by their ${BY[v.by] ?? v.by}${small}`,
    provisional: () => `not over yet: ${number(v.to_count)} ${of} are at ${to} so far`,
    lossy: () => `${number(v.missing)} ${of} are missing at ${to}`,
    duplicated: () => `${number(v.extra)} more at ${to} than ${number(v.from_count)} at ${v.from_tier}`,
    corrupted: () => `as many at ${to} as at ${v.from_tier}, ${number(v.to_count)}, but not the same: their ${BY[v.by] ?? v.by} differ`,
    late: () => (v.missing ? `${number(v.missing)} ${of} have not arrived at ${to} yet, which lags` : `all ${of} are at ${to}, some of them arrived after the window was closed`),
    "absent-audit": () => `the audit of ${v.absent.join(", ")} is absent: whether anything is missing is not known`,
  })[v.state]?.() ?? v.state;
  return v.remark ? `${said}; ${v.remark}` : said;
}
