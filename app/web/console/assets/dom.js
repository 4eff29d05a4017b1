// Elements of all pages. Data reaches a page as text nodes only (see `el`), so that no text of a producer or
// receiver can become markup.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  for (const child of children.flat(Infinity)) node.append(child instanceof Node ? child : document.createTextNode(child ?? ""));
  return node;
}

export const number = (value) => (value === null || value === undefined ? "unknown" : Math.round(value).toLocaleString("en"));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 1) return seconds < 0.001 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds.toFixed(1)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}

export const clock = (ms) => new Date(ms).toLocaleString("sv");
export const time = (ms) => (ms === null ? "no time" : clock(ms));
export const pill = (text, kind) => el("span", { class: `pill ${kind}` }, text);

// An incident: red while its state lasts, quiet once it has ended. An event of a moment has no end.
export function incident(one) {
  const over = one.lasts && !one.open;
  const end = ["ended", one.ended_ms === null ? "" : ` after ${duration((one.ended_ms - one.at_ms) / 1000)}`, one.ended_why && `: ${one.ended_why}`].join("");
  const mark = one.open ? pill("open", "bad") : over ? pill(end, "") : "";
  return el("div", { class: `note ${one.open ? "" : over ? "over" : "moment"}` }, el("b", {}, one.kind), " ", mark, ` ${one.subject}: ${one.message}`,
    el("small", {}, `${clock(one.at_ms)} · ${one.worker} · ${one.remedy}`));
}

export const stateKind = { running: "good", flowing: "good", closed: "good", draining: "warn", drained: "warn", paused: "warn", starting: "warn", waiting: "bad", emptying: "warn", "catching-up": "warn", "half-open": "warn", open: "bad", dead: "bad", copied: "good", preparing: "warn", blocked: "bad", refused: "bad", vanished: "bad", halted: "bad", "not-copied": "" };
export const state = (text) => pill(text, stateKind[text] ?? "");
export const link = (href, text) => el("a", { href }, text);

export function table(caption, columns, rows, empty) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  const head = columns.map(([title, kind]) => el("th", { class: kind ?? "", scope: "col" }, title));
  const body = rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: columns[i][1] ?? "", ...(columns[i][1] === "cut" ? { title: cell } : {}) }, cell))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}
