// Records over time: a chart a topic, a line a cluster or group. Its numbers are in its title, too. Rows come from
// a topic, which anybody may have written: what cannot be drawn is counted, not drawn.

import { compact, svg } from "./audit_chart.js";
import { duration, el, number } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT] = [360, 150, 46, 8, 10, 22];
const COLORS = 6;
const MOST_SPOTS = 5_000; // of a line: Spark's job makes some hundreds
const LATEST_MS = 8.64e15; // as a Date has it
const utc = (ms) => new Date(ms).toISOString().slice(5, 16).replace("T", " ");

const isPoint = (one) => Array.isArray(one) && one.every(Number.isFinite) && Math.abs(one[0]) <= LATEST_MS && one[1] >= 0;

const isLine = ({ points, step_ms: step }) => Array.isArray(points) && points.length <= MOST_SPOTS && points.every(isPoint) && Number.isFinite(step) && step >= 1;
const least = (all) => all.reduce((a, b) => Math.min(a, b), Infinity);
const greatest = (all) => all.reduce((a, b) => Math.max(a, b), -Infinity);

function line({ points, step_ms: step }, i, first, last, most) {
  const known = new Map(points);
  const x = (at) => LEFT + ((at - first) / Math.max(1, last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (count) => HEIGHT - FOOT - (count / most) * (HEIGHT - FOOT - TOP);
  if (first === last) return svg("circle", { cx: LEFT + 4, cy: y(known.get(first) ?? 0).toFixed(1), r: 5 - Math.min(3, i), class: `t-${i % COLORS}` });
  const steps = Math.floor((last - first) / step);
  const times = steps < MOST_SPOTS ? Array.from({ length: steps + 1 }, (_, n) => first + n * step) : [...known.keys()].sort((a, b) => a - b);
  const spots = times.map((at) => `${x(at).toFixed(1)},${y(known.get(at) ?? 0).toFixed(1)}`); // a time without windows is one without records
  return svg("polyline", { points: spots.join(" "), class: `line l-${i % COLORS}`, "stroke-width": Math.max(1.4, 4.4 - 1.2 * i) }); // those that saw the same lie on each other
}

function chart(topic, rows) {
  const times = rows.flatMap((row) => row.points.map(([at]) => at));
  const [first, last] = [least(times), greatest(times)];
  const most = greatest(rows.flatMap((row) => row.points.map(([, count]) => count))) || 1;
  const step = duration(rows[0].step_ms / 1000);
  const words = `${topic}: at most ${number(most)} records in ${step}`;
  const floor = HEIGHT - FOOT;
  const ends = [[LEFT, first, "start"], ...(last > first ? [[WIDTH - RIGHT, last, "end"]] : [])];
  return el("section", { class: "card" }, el("h3", {}, topic), el("p", { class: "quiet" }, `records in ${step}, UTC`),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words, class: "plot" }, svg("title", {}, words),
      [TOP, floor].map((y) => svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "axis" })),
      [[TOP + 4, compact(most)], [floor, "0"]].map(([y, text]) => svg("text", { x: LEFT - 6, y, "text-anchor": "end" }, text)),
      ends.map(([x, at, anchor]) => svg("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, utc(at))),
      rows.map((row, i) => line(row, i, first, last, most))),
    el("p", { class: "legend" }, rows.map((row, i) => el("span", {}, el("i", { class: `t-${i % COLORS}` }), row.place))));
}

export function charts(series) {
  const topics = new Map();
  const lines = series.filter(isLine);
  for (const row of lines) if (row.points.length) topics.set(row.topic, [...(topics.get(row.topic) ?? []), row]);
  const odd = series.length - lines.length;
  return el("div", {},
    topics.size ? el("div", { class: "cards" }, [...topics].map(([topic, rows]) => chart(topic, rows))) : odd ? "" : el("p", { class: "quiet" }, "Nothing was counted in this time."),
    odd ? el("p", { class: "where" }, `${number(odd)} lines cannot be drawn: they are not as Spark's job writes them.`) : "");
}
