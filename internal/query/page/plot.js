// The drawing of a chart: axes, lines and areas. It knows nothing of where points come from.
import { svg } from "./dom.js";
import { compact, atMinute, atSecond, onDay } from "./format.js";

const top = 12, bottom = 26, right = 8;

// yTicks are round numbers from 0 to above the largest count: whole ones, because hits are.
function yTicks(largest, wanted) {
  const rough = Math.max(1, largest) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough && (s >= 10 || Number.isInteger(s))) ?? Math.ceil(rough));
  const out = [];
  for (let y = 0; y < largest + step; y += step) out.push(y);
  return out;
}

const lengths = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 604800, 1209600, 2419200, 4838400, 7862400].map((s) => s * 1000);

// xTicks are round moments of the reader's own day.
function xTicks(from, to, wanted) {
  const step = lengths.find((length) => (to - from) / length <= wanted) ?? lengths.at(-1);
  // What the reader's clocks show, as if it were UTC: so ticks are at round times before a change of the clocks, and after it.
  const shown = (t) => (step < 3600_000 ? t : t - new Date(t).getTimezoneOffset() * 60_000);
  const at = (s) => (step < 3600_000 ? s : s + new Date(s + new Date(s).getTimezoneOffset() * 60_000).getTimezoneOffset() * 60_000);
  const out = [];
  for (let s = Math.ceil(shown(from) / step) * step; at(s) <= to; s += step) if (at(s) >= from) out.push(at(s));
  const midnight = (t) => new Date(t).getHours() === 0 && new Date(t).getMinutes() === 0;
  const label = (t) => (step >= 86400_000 || (step >= 3600_000 && midnight(t)) ? onDay(t) : step < 60_000 ? atSecond(t) : atMinute(t));
  return out.map((t) => [t, label(t)]);
}

// crowded takes so many points together as one, which is their mean, with the least and the most of them. Points that
// stand together do so at every drawing, or the line would twitch while time goes on.
function crowded(points, crowd, step) {
  const groups = new Map();
  for (const point of points) {
    const at = Math.floor(point[0] / (crowd * step));
    if (!groups.has(at)) groups.set(at, []);
    groups.get(at).push(point);
  }
  return [...groups.values()].map((group) => {
    const counts = group.map(([, n]) => n);
    const mean = counts.reduce((sum, n) => sum + n, 0) / counts.length;
    return [(group[0][0] + group.at(-1)[0]) / 2, mean, Math.min(...counts), Math.max(...counts)];
  });
}

const leastPixels = 2; // from one point to the next: closer ones would be a smear

// draw makes the drawing of lines, each {line, points, unfinishedFrom}, between two moments.
// It returns it with the functions that place a moment and a count, and how many points stand together as one.
export function draw({ lines, from, to, incomplete, step, width, height }) {
  const largest = Math.max(1, ...lines.flatMap(({ points }) => points.map(([, n]) => n)));
  const ys = yTicks(largest, height < 240 ? 3 : 4);
  const left = Math.max(28, 12 + 7.5 * Math.max(...ys.map((y) => compact(y).length)));
  const x = (t) => left + ((t - from) / Math.max(1, to - from)) * (width - left - right);
  const y = (n) => height - bottom - (n / ys.at(-1)) * (height - top - bottom);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "drawing" });
  for (const n of ys) {
    root.append(svg("line", { class: n === 0 ? "axis" : "grid", x1: left, x2: width - right, y1: y(n), y2: y(n) }),
      svg("text", { x: left - 8, y: y(n) + 4, "text-anchor": "end" }, compact(n)));
  }
  for (const [t, label] of xTicks(from, to, Math.max(2, Math.floor((width - left) / 84)))) {
    const at = x(t);
    root.append(svg("line", { class: "axis", x1: at, x2: at, y1: height - bottom, y2: height - bottom + 4 }));
    if (at > left + 14 && at < width - right - 20) root.append(svg("text", { x: at, y: height - 7, "text-anchor": "middle" }, label));
  }
  if (incomplete > from + step) {
    const counted = lines.some(({ points }) => points.length > 0 && points[0][0] + step <= incomplete);
    root.append(...uncounted(counted ? "hits may be missing" : "not counted yet", left, x(Math.min(incomplete, to)), top, height - bottom));
  }
  const crowd = Math.max(1, Math.ceil((leastPixels * (to - from)) / step / (width - left - right)));
  for (const { line, points, unfinishedFrom } of lines) {
    const finished = unfinishedFrom ? points.filter(([t]) => t < unfinishedFrom) : points;
    const whole = crowd > 1 ? crowded(finished, crowd, step) : finished;
    const open = [...whole.slice(-1), ...points.slice(finished.length)];
    const path = (list) => list.map(([t, n], i) => `${i === 0 ? "M" : "L"}${x(t).toFixed(1)} ${y(n).toFixed(1)}`).join("");
    if (lines.length === 1 && whole.length > 1) {
      root.append(svg("path", { class: "area", d: `${path(whole)}L${x(whole.at(-1)[0])} ${y(0)}L${x(whole[0][0])} ${y(0)}Z` }));
    }
    if (whole.length === 1) root.append(svg("circle", { class: "alone", "data-line": line, cx: x(whole[0][0]), cy: y(whole[0][1]), r: 3 }));
    if (crowd > 1 && whole.length > 1) {
      const edges = [...whole.map(([t, , , most]) => [t, most]), ...whole.map(([t, , least]) => [t, least]).reverse()];
      root.append(svg("path", { class: "band", "data-line": line, d: `${path(edges)}Z` }));
    }
    root.append(svg("path", { class: "line", "data-line": line, d: path(whole) }));
    if (open.length > 1) root.append(svg("path", { class: "line open", "data-line": line, d: path(open) }));
  }
  return { root, x, y, bottom: height - bottom, top, crowd };
}

// uncounted marks the time of which hits may be missing, such as that before counting began.
function uncounted(label, x1, x2, y1, y2) {
  if (x2 - x1 < 2) return [];
  const out = [svg("rect", { class: "uncounted", x: x1, y: y1, width: x2 - x1, height: y2 - y1 })];
  if (x2 - x1 > 130) out.push(svg("text", { x: (x1 + x2) / 2, y: y1 + 14, "text-anchor": "middle" }, label));
  return out;
}
