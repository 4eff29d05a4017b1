// The pages of alerts: firing audit findings, their notices, and the definitions.

import { badge, several, tierOf } from "./audit_words.js";
import { clock, duration, el, incident, link, number, pill, table } from "./dom.js";

const MOST = 200; // alerts in one request; the API has the others
const MOST_SHOWN = 20; // episodes of one rule with all their windows
const SHOWN_URL = /^(https?:\/\/)(?:[^/?#]*@)?([^/?#]*)([/?#].*)?$/i;
const SEVERITIES = { critical: "bad", warning: "warn" };
const STATES = { firing: "bad", pending: "warn", resolved: "good" };
const PATIENCE_MS = 30000;

const alertPath = (name) => `/alerts/${encodeURIComponent(name)}`;
const tiers = (one) => `${one.from_tier} → ${tierOf(one.to_tier, one.group)}`;
const severity = (text) => pill(text, SEVERITIES[text] ?? "");
const ago = (ms) => `${duration(Math.max(0, Date.now() - ms) / 1000)} ago`;
const lines = (parts) => parts.map((part) => el("div", {}, part));

// A channel's last notice, and why it has not taken the current one.
function said(channel) {
  const last = channel.at_ms ? `took notice ${number(channel.notice)} at ${clock(channel.at_ms)}` : "";
  if (channel.trouble) return [pill("does not take it", "bad"), `: ${[channel.trouble, channel.failing_ms ? `since ${clock(channel.failing_ms)}` : "", last || "took nothing yet"].filter(Boolean).join("; ")}`];
  if (channel.waits) return [pill("has a notice to take", "warn"), last ? ` ${last}` : ""];
  return [last || "had no notice to take"];
}

const notices = (one) => (one.channels.length ? lines(one.channels.map((c) => [`${c.channel} ${c.place}: `, ...said(c)])) : one.severity === "unknown" ? "its definition was deleted" : "none: it has no channels");

// The alert's condition in a sentence, as the command prints it.
function condition(spec) {
  const above = spec.above ? ` above ${spec.above}` : "";
  const holds = spec.for && spec.for !== "0s" ? ` for ${spec.for}` : "";
  const of = `topics ${(spec.topics ?? []).join(", ")}${spec.exclude?.length ? ` except ${spec.exclude.join(", ")}` : ""}`;
  return `${[spec.on].flat().join(", ")}${above}${holds}; ${of}; ${spec.tiers ? spec.tiers.join(" → ") : "any two tiers"}`;
}

// A definition for people: without values that may be secrets (paths and queries of addresses, headers).
function shown(definition) {
  const clean = (value, name) => {
    if (Array.isArray(value)) return value.map((one) => clean(one, ""));
    if (name === "headers") return Object.fromEntries(Object.entries(value).map(([header, text]) => [header, String(text).startsWith("env:") ? text : "…"]));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, clean(one, key)]));
    if (name === "url" && typeof value === "string") return value.replace(SHOWN_URL, (_, scheme, host, rest) => `${scheme}${host}${rest && rest !== "/" ? "/…" : ""}`);
    return value;
  };
  return { ...definition, spec: { ...definition.spec, channels: clean(definition.spec.channels ?? [], "channels") } };
}

// The same in short; the alert's own page has more.
function noticesShort(one) {
  if (one.state === "pending") return "not yet: it must hold for longer";
  if (!one.channels.length) return notices(one);
  return lines(one.channels.map((c) => [`${c.channel} `, c.trouble ? pill("does not take it", "bad") : c.waits ? pill("has a notice to take", "warn") : c.at_ms ? `took notice ${number(c.notice)}` : "had no notice to take"]));
}

function alertsTable(caption, alerts, empty) {
  const columns = [["Alert"], ["What", "wrap"], ["Holds since"], ["Notices"]];
  return table(caption, columns, alerts.map((one) => [
    lines([one.severity === "unknown" ? one.name : link(alertPath(one.name), one.name), [pill(one.state, STATES[one.state] ?? ""), " ", severity(one.severity)]]), [el("b", {}, one.topic), `, ${tiers(one)}: ${one.what}`],
    lines([clock(one.since_ms), one.resolved_ms ? `over ${clock(one.resolved_ms)}` : ago(one.since_ms)]), noticesShort(one),
  ]), empty);
}

function rulesTable(rules) {
  const columns = [["Alert"], ["Fires on", "wrap"], ["Firing", "n"], ["Pending", "n"], ["Channels"]];
  return table("Definitions", columns, rules.map((rule) => [
    lines([link(alertPath(rule.name), rule.name), severity(rule.definition.spec.severity ?? "warning")]), condition(rule.definition.spec), number(rule.firing), number(rule.pending),
    rule.channels.length ? lines(rule.channels.map((c) => [`${c.channel} ${c.place}`, c.trouble ? [" ", pill("does not take it", "bad")] : ""])) : "none: no one gets a notice",
  ]), "No alert is defined yet. Deploy one (kind: Alert): switchyard config deploy -f alert.yaml --execute");
}

// The headline of the page.
function verdict(alerts, rules) {
  const firing = alerts.filter((one) => one.state === "firing");
  const deaf = rules.flatMap((rule) => rule.channels.filter((c) => c.trouble).map((c) => [link(alertPath(rule.name), rule.name), `: ${c.channel} ${c.place} does not take notices: ${c.trouble}`]));
  const words = [];
  if (firing.length) words.push([`${several(firing.length, "alert")} fire${firing.length === 1 ? "s" : ""}: ${[...new Set(firing.map((one) => one.topic))].slice(0, 5).join(", ")}`]);
  if (deaf.length) words.push(...deaf);
  if (words.length) return el("div", { class: "verdict bad" }, words.length > 1 ? el("ul", {}, words.map((one) => el("li", {}, one))) : el("b", {}, words[0]));
  const pending = alerts.filter((one) => one.state === "pending").length;
  if (pending) return el("p", { class: "verdict plain" }, `Nothing fires; ${several(pending, "alert")} would fire, if this continues.`);
  return rules.length ? el("p", { class: "verdict good" }, "Nothing fires.") : el("p", { class: "verdict plain" }, "No alert is defined, so no person learns of missing records.");
}

// Incidents about alerts in general: the leader cannot read the audit, or there are too many alerts.
const incidents = (list) => list.filter((one) => one.kind.startsWith("alert")).map(incident);

function alertsPage(alerts, rules, notes, more) {
  const live = alerts.filter((one) => one.state !== "resolved");
  const over = alerts.filter((one) => one.state === "resolved");
  return [
    el("h1", {}, "Alerts"), verdict(alerts, rules), incidents(notes),
    el("h2", {}, "Firing and pending"), alertsTable("Firing and pending", live, "None."),
    el("h2", {}, "Resolved within a day"), alertsTable("Resolved", over, "None."),
    more ? el("p", { class: "quiet" }, "These are the first ones; the API has the others.") : "",
    el("h2", {}, "Definitions"), rulesTable(rules), el("p", { class: "where" }, "or: switchyard alert list|describe|test"),
  ].flat();
}

function episode(one) {
  const columns = [["Window"], ["State"], ["Before", "n"], ["After", "n"], ["Missing", "n"], ["Too many", "n"], ["Audit absent of"]];
  const known = (value) => (value === null ? "unknown" : number(value));
  const rows = one.windows.map((w) => [link(`/audit/${encodeURIComponent(one.topic)}?window=${w.start_ms}`, clock(w.start_ms)), badge(w.state), number(w.from_count), number(w.to_count), known(w.missing), known(w.extra), w.absent.join(", ")]);
  const facts = [`holds since ${clock(one.since_ms)}`, one.fired_ms ? `fired at ${clock(one.fired_ms)}` : "", one.over_ms ? `over since ${clock(one.over_ms)}` : "", one.resolved_ms ? `resolved at ${clock(one.resolved_ms)}` : "", one.aged ? "only because its windows are too old to be checked: nothing was repaired" : ""];
  return [
    el("h3", {}, pill(one.state, STATES[one.state] ?? ""), ` ${one.topic}, ${tiers(one)}: ${one.what}`), el("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    one.state === "pending" ? "" : el("div", {}, notices(one)), table(`Windows of ${one.topic}`, columns, rows, "Its windows are not known any more."),
    one.more_windows ? el("p", { class: "quiet" }, `and ${several(one.more_windows, "window")} more`) : "",
    one.todo.length ? el("pre", { tabindex: "0" }, one.todo.join("\n")) : "",
  ].flat();
}

function rulePage(rule, alerts, { tiles, where }) {
  const spec = rule.definition.spec;
  const channels = rule.channels.map((c) => [lines([c.channel, c.place]), said(c)]);
  const test = rule.channels.length ? el("p", { class: "acts" }, el("button", { type: "button", "data-act": "test", "data-of": rule.name }, "Send a test"), el("span", { class: "quiet" }, ` or: switchyard alert test ${rule.name}`)) : "";
  return [
    where(link("/alerts", "Alerts")), el("h1", {}, rule.name), el("p", {}, severity(spec.severity ?? "warning"), ` ${condition(spec)}`),
    tiles([["firing", number(rule.firing)], ["pending", number(rule.pending)], ["resolved within a day", number(alerts.filter((one) => one.state === "resolved").length)]]),
    el("h2", {}, "Channels"), table("Channels", [["Channel"], ["Notices", "wrap"]], channels, "None, so no one gets a notice. Add channels to its definition."), test,
    el("h2", {}, "Findings"), alerts.length ? alerts.slice(0, MOST_SHOWN).flatMap(episode) : el("p", { class: "quiet" }, "Nothing fires, and nothing was resolved within a day."),
    alerts.length > MOST_SHOWN ? alertsTable("Others", alerts.slice(MOST_SHOWN), "") : "",
    el("h2", {}, "Definition"), el("p", { class: "quiet" }, `deployed ${clock(rule.deployed.at_ms)} by ${rule.deployed.by}; paths of addresses are not shown, as they may be secrets`),
    el("pre", { tabindex: "0" }, JSON.stringify(shown(rule.definition), null, 2)),
  ].flat();
}

// The loader for an address of these pages.
export function alertLoader(get, name, parts) {
  if (name) {
    return async () => {
      const [rule, alerts] = await Promise.all([get(`/api/v1${alertPath(name)}`), get(`/api/v1/alerts?${new URLSearchParams({ name, limit: MOST })}`)]);
      return rulePage(rule, alerts.items, parts);
    };
  }
  return async () => {
    const [alerts, rules, notes] = await Promise.all([get(`/api/v1/alerts?limit=${MOST}`), get(`/api/v1/alert-rules?limit=${MOST}`), get("/api/v1/incidents?limit=100")]);
    return alertsPage(alerts.items, rules.items, notes.items, alerts.next || rules.next);
  };
}

// Sends a test; returns the text to show.
export async function alertAct({ of }) {
  if (!confirm(`Send a test notice to every channel of ${of}?`)) return "";
  const answer = await fetch(`/api/v1${alertPath(of)}/test`, { method: "POST", headers: { "X-Switchyard-Actor": "console" }, signal: AbortSignal.timeout(PATIENCE_MS) });
  const result = await answer.json();
  if (!answer.ok) throw new Error(result.detail);
  return result.channels.map((c) => `${c.channel} ${c.place}: ${c.taken ? "took it" : c.why}`).join("\n");
}
