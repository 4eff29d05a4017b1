// Windows of an audited topic over time: a bar for every tier, side by side. Missing records show in three ways,
// never by colour alone: hatching up to the earlier tier's count, a mark above, and a tooltip.

import { el, number, time } from "./dom.js";
import { minus, sentence, tierOf } from "./audit_words.js";

const SVG = "http://www.w3.org/2000/svg";
const [BAR, GAP, PAD, LEFT, TOP, HEIGHT, FOOT] = [15, 3, 9, 52, 22, 130, 22];
const LEAST = 54; // of a window's width: its mark and its time have to fit
export const MOST_DRAWN = 60;
const WAY = ["proxy-client", "proxy-server", "regional", "aggregate", "consumer"]; // of a record

const svg = (name, attributes = {}, ...children) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.flat(Infinity));
  return node;
};

const rank = (tier) => WAY.indexOf(tier.split(" ")[0]) + 1 || 99;
export const inOrder = (tiers) => [...tiers].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
const compact = (n) => Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(n);

// Rows of tiers and clusters, and verdicts, by window, the newest first.
export function byWindow(windows, verdicts) {
  const found = new Map();
  const at = (row) => {
    const key = `${row.start_ms}/${row.end_ms}`;
    if (!found.has(key)) found.set(key, { start: row.start_ms, end: row.end_ms, tiers: {}, rows: [], verdicts: [], complete: true });
    return found.get(key);
  };
  for (const row of windows) {
    const window = at(row);
    const tier = tierOf(row.tier, row.cluster.split(":")[1]);
    window.tiers[tier] = (window.tiers[tier] ?? 0) + row.count;
    window.complete &&= row.complete;
    window.rows.push(row);
  }
  for (const row of verdicts) {
    const window = at(row);
    for (const [tier, count] of [[row.from_tier, row.from_count], [tierOf(row.to_tier, row.group), row.to_count]]) window.tiers[tier] ??= count;
    window.verdicts.push(row);
  }
  for (const window of found.values()) window.rows.sort((a, b) => rank(a.tier) - rank(b.tier));
  return [...found.values()].sort((a, b) => b.start - a.start);
}

const GRAVE = ["lossy", "corrupted", "duplicated", "late", "absent-audit", "provisional", "ok"];
export const worst = (window) => [...window.verdicts].sort((a, b) => GRAVE.indexOf(a.state) - GRAVE.indexOf(b.state))[0];

function mark(window) {
  const v = worst(window);
  if (!v) return window.complete ? ["", ""] : ["part", "quiet"];
  const some = { lossy: `${minus}${compact(v.missing)}`, duplicated: `+${compact(v.extra)}`, corrupted: "≠", late: "late", "absent-audit": "?", provisional: "…" };
  return [some[v.state] ?? "", { lossy: "bad", corrupted: "bad", duplicated: "warn", late: "warn", "absent-audit": "warn" }[v.state] ?? "quiet"];
}

function patterns() {
  const lines = (id, kind) => svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 6, height: 6, class: `${kind}-bg` }), svg("rect", { width: 2.5, height: 6, class: kind }));
  return svg("defs", {}, lines("h-lost", "h-lost"), lines("h-more", "h-more"));
}

function bars(window, tiers, top, x) {
  const height = (count) => (top ? Math.max((count / top) * HEIGHT, count ? 1.5 : 0) : 0);
  const rect = (i, from, to, kind, more = {}) => svg("rect", { x: (x + i * (BAR + GAP)).toFixed(1), y: (TOP + HEIGHT - to).toFixed(1), width: BAR, height: Math.max(0, to - from).toFixed(1), class: kind, ...more });
  return tiers.flatMap((tier, i) => {
    const count = window.tiers[tier];
    const v = window.verdicts.find((one) => tierOf(one.to_tier, one.group) === tier);
    const full = height(count ?? 0);
    const found = [];
    if (count !== undefined) found.push(rect(i, 0, full, `t-${i % 6}`));
    if (v?.state === "lossy") found.push(rect(i, full, Math.max(full + 4, height(v.from_count)), "edge lost", { fill: "url(#h-lost)" }));
    else if (v?.state === "duplicated") found.push(rect(i, Math.min(full - 4, height(v.from_count)), full, "edge more", { fill: "url(#h-more)" }));
    else if (v?.state === "corrupted") found.push(rect(i, 0, full, "edge lost", { fill: "url(#h-lost)" }));
    else if (v && v.missing > 0 && v.state !== "ok") found.push(rect(i, full, Math.max(full + 4, height(v.from_count)), "edge wait"));
    return found;
  });
}

export function chart(windows, href) {
  const shown = windows.filter((window) => window.start !== null).slice(0, MOST_DRAWN).reverse();
  if (!shown.length) return el("p", { class: "quiet" }, "Nothing was counted in this time.");
  const tiers = inOrder(new Set(shown.flatMap((window) => Object.keys(window.tiers))));
  const top = Math.max(...shown.flatMap((window) => [...Object.values(window.tiers), ...window.verdicts.map((v) => v.from_count)]));
  const each = Math.max(LEAST, tiers.length * (BAR + GAP) + 2 * PAD);
  const [width, tall] = [each * shown.length + 4, TOP + HEIGHT + FOOT];
  const y = (share) => TOP + HEIGHT - share * HEIGHT;
  const steps = top > 1 ? [0, 0.5, 1] : [0, 1];
  const axis = steps.map((share) => svg("line", { x1: 0, x2: width, y1: y(share), y2: y(share), class: "axis" }));
  const scale = steps.map((share) => svg("text", { x: LEFT - 8, y: y(share) + 4, "text-anchor": "end" }, compact(top * share)));
  const groups = shown.map((window, n) => {
    const x = n * each;
    const [text, kind] = mark(window);
    const told = window.verdicts.length ? window.verdicts.map(sentence).join("; ") : window.complete ? "one tier only, nothing to compare" : "incomplete: counting began later, it is not compared";
    const words = `${time(window.start)}: ${tiers.map((tier) => `${tier} ${number(window.tiers[tier] ?? 0)}`).join(", ")}. ${told}`;
    return svg("a", { href: href(window), class: `window ${window.complete ? "" : "part"}`, "aria-label": words },
      svg("title", {}, words), svg("rect", { x, y: 0, width: each, height: tall, class: "hit" }),
      bars(window, tiers, top, x + (each - tiers.length * (BAR + GAP) + GAP) / 2),
      svg("text", { x: x + each / 2, y: 14, "text-anchor": "middle", class: `mark ${kind}` }, text),
      svg("text", { x: x + each / 2, y: TOP + HEIGHT + 15, "text-anchor": "middle" }, time(window.start).slice(11, 16)));
  });
  const legend = [...tiers.map((tier, i) => [`t-${i % 6}`, tier]), ["h-lost", `${minus}n: missing there`], ["h-more", "+n: too many"], ["wait", "… not over, late or ? unknown"]];
  return [
    el("div", { class: "drawn" }, svg("svg", { width: LEFT, height: tall, "aria-hidden": "true" }, scale),
      el("div", { class: "scroll chart", tabindex: "0", role: "region", "aria-label": "Windows, a bar for every tier" },
        svg("svg", { width, height: tall, role: "group", "aria-label": `${shown.length} windows` }, patterns(), axis, groups))),
    el("p", { class: "legend" }, legend.map(([kind, text]) => el("span", {}, el("i", { class: `key ${kind}` }), text)), windows.length > MOST_DRAWN ? el("span", {}, `the newest ${MOST_DRAWN} windows`) : ""),
    el("p", { class: "where" }, `From ${time(shown[0].start)} to ${time(shown.at(-1).end)}, by the records' time. Click a window for its details.`),
  ];
}
