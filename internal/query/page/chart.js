// The chart: it asks for the series, has them drawn, and reads points by pointer and keyboard.
import { $, el, svg, put, repeat, segments } from "./dom.js";
import { number, seconds, spoken, brief, moment, sentence, inFull, atSecond, atMinute, shown, apart } from "./format.js";
import { ask, clock } from "./api.js";
import { draw } from "./plot.js";
import { amber } from "./status.js";
import { gapOf } from "./totals.js";
import { view, windows, stepsOf, usualStep, calendarZone, change, onChange } from "./view.js";

let series = [], drawn, at = -1, byKey = false, reload = () => {};

export function start() {
  segments($("ranges"), "range", windows.map((w) => [w, brief(w)]), view.range, (range) => change({ range, step: usualStep(range) }));
  $("step").addEventListener("change", () => change({ step: $("step").value }));
  const plot = $("plot");
  plot.addEventListener("pointermove", (event) => point(nearest(event), false));
  plot.addEventListener("pointerdown", (event) => point(nearest(event), false));
  plot.addEventListener("pointerleave", () => { if (!byKey) point(-1); });
  plot.addEventListener("blur", () => point(-1));
  plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) point(moments().length - 1, true); });
  plot.addEventListener("keydown", onKey);
  new ResizeObserver(redraw).observe(plot);
  onChange((parts) => { if (parts.keys || parts.range || parts.step) { showSteps(); reload(); } });
  showSteps();
  reload = repeat(load);
}

function showSteps() {
  $("step").replaceChildren(...stepsOf(view.range).map((s) => el("option", { value: s, selected: s === view.step }, spoken(s))));
}

// load asks for the series and returns after how many seconds to ask again.
async function load() {
  const back = seconds(view.range), pause = back <= 60 ? 1 : back <= 3600 ? 3 : back <= 86400 ? 15 : 60;
  $("chart").hidden = view.keys.length === 0;
  if (view.keys.length === 0) {
    series = [];
    return pause;
  }
  const { keys, range, step } = view;
  // A little less than the window, so that the tier of this length still reaches back to its beginning.
  const length = seconds(range) * 1000;
  const from = Math.round(clock.now() - length + Math.max(5000, length / 1000));
  try {
    const answer = await ask("v1/series", [...keys.map((key) => ["key", key]), ["from", from], ["step", step], ...calendarZone(step)]);
    if (keys !== view.keys || range !== view.range || step !== view.step) return 0;
    series = answer.series ?? [answer];
    redraw();
  } catch (error) {
    if (series.length === 0 || error.status === 400) put($("chart-note"), sentence(error.message));
    return 3;
  }
  return pause;
}

const moments = () => series[0]?.points.map(([t]) => t) ?? [];

function redraw() {
  const plot = $("plot"), width = plot.clientWidth;
  if (series.length === 0 || width === 0) return;
  const step = seconds(series[0].step) * 1000;
  const to = clock.now(), from = Math.min(to - seconds(view.range) * 1000, moments()[0] ?? to);
  const since = Date.parse(series[0].counting_since ?? "") || 0;
  const lines = series.map((s) => ({ line: view.keys.indexOf(s.key), points: s.points, unfinishedFrom: s.unfinished_from }));
  drawn?.root.remove();
  drawn = draw({ lines, from, to, incomplete: incompleteUpTo(since, step), step, width, height: width < 480 ? 210 : 270 });
  plot.prepend(drawn.root);
  plot.dataset.points = moments().length;
  plot.dataset.step = series[0].step;
  $("legend").replaceChildren(...(series.length < 2 ? [] : series.map((s) =>
    el("li", { "data-line": view.keys.indexOf(s.key) }, el("span", { class: "swatch", "aria-hidden": "true" }), el("bdi", {}, shown(s.key))))));
  plot.setAttribute("aria-valuemax", Math.max(0, moments().length - 1));
  note(since, from, step);
  if (at >= moments().length) at = moments().length - 1;
  if (at >= 0) point(at, byKey);
  else plot.setAttribute("aria-valuetext", summary());
}

// incompleteUpTo is the moment before which points may lack hits: when counting began, or when that is not why, the
// beginning of the first complete step.
function incompleteUpTo(since, step) {
  const end = Math.max(0, ...series.map((s) => s.complete_from ?? 0));
  return since > end - step && since < end ? since : end;
}

function summary() {
  const n = moments().length;
  return n === 0 ? "no points yet" : `${n} points of ${spoken(series[0].step)}; arrow keys read them`;
}

function note(since, from, step) {
  const said = [];
  const first = series.find((s) => !s.complete);
  if (first) {
    const asOf = Date.parse(first.as_of), late = clock.now() - asOf > amber * 1000;
    const gap = gapOf({ complete: false, upper: late ? null : 0, counting_since: first.counting_since, from: new Date(from).toISOString() });
    said.push({
      late: `Hits after ${moment(asOf, clock.now())} are not counted yet.`, lost: "Hits of this range are known to be missing.",
      young: `Counting began at ${moment(since, clock.now())}.`,
    }[gap.kind]);
    if (gap.kind !== "lost" && since && moments()[0] + step <= since) said.push("Earlier points have only hits that carried their own time.");
  }
  if (series.some((s) => s.unfinished_from)) said.push("The dashed end is still being counted.");
  if (drawn.crowd > 1) said.push(`A line is the mean of ${drawn.crowd} points at a time, in a band from the least to the most of them.`);
  if (seconds(series[0].step) !== seconds(view.step)) said.push(`A point is ${spoken(series[0].step)}: the cells that reach back so far are no finer.`);
  put($("chart-note"), said.join(" "));
}

function nearest(event) {
  const x = event.clientX - $("plot").getBoundingClientRect().left;
  let best = -1;
  moments().forEach((t, i) => { if (best < 0 || Math.abs(drawn.x(t) - x) < Math.abs(drawn.x(moments()[best]) - x)) best = i; });
  return best;
}

// point reads the points of one moment; -1 reads none.
function point(i, keyboard = false) {
  const plot = $("plot"), reading = $("reading");
  [at, byKey] = [i, keyboard];
  plot.querySelector(".cursor")?.remove();
  reading.hidden = i < 0 || !drawn;
  if (reading.hidden) return;
  const t = moments()[i], x = drawn.x(t), step = seconds(series[0].step);
  const time = step >= 3600 || seconds(view.range) > 86400 ? inFull(t) : step < 60 ? atSecond(t) : atMinute(t);
  const values = series.map((s) => ({ key: s.key, line: view.keys.indexOf(s.key), n: s.points[i]?.[1] ?? 0, open: s.unfinished_from && t >= s.unfinished_from, bounds: boundsAt(s, i) }));
  drawn.root.append(svg("g", { class: "cursor" }, svg("line", { x1: x, x2: x, y1: drawn.top, y2: drawn.bottom }),
    ...values.map(({ line, n }) => svg("circle", { "data-line": line, cx: x, cy: drawn.y(n), r: 4 }))));
  const open = values.some((v) => v.open);
  reading.replaceChildren(el("p", {}, `${time}, ${spoken(series[0].step)}${open ? ", so far" : ""}`),
    ...values.map(({ key, line, n, bounds }) => el("p", { class: "value", "data-line": line },
      el("span", { class: "swatch" }), el("bdi", {}, shown(key)), el("b", {}, number(n)), bounds)));
  const leftmost = plot.clientWidth - reading.offsetWidth - 4;
  reading.style.left = `${Math.max(4, Math.min(leftmost, x + (x > plot.clientWidth / 2 ? -reading.offsetWidth - 14 : 14)))}px`;
  plot.setAttribute("aria-valuenow", i);
  plot.setAttribute("aria-valuetext", `${time}${open ? ", so far" : ""}: ${values.map(({ key, n, bounds }) => `${apart(key)} ${number(n)}${bounds}`).join(", ")}`);
}

// boundsAt are the bounds of a point that is not exact.
function boundsAt(s, i) {
  const [lower, upper] = s.bounds?.[i] ?? [0, 0];
  return lower === upper ? "" : ` (${number(lower)} – ${number(upper)})`;
}

function onKey(event) {
  const last = moments().length - 1, from = at < 0 ? last : at;
  const to = { ArrowLeft: from - 1, ArrowDown: from - 1, ArrowRight: from + 1, ArrowUp: from + 1, PageUp: from - 10, PageDown: from + 10, Home: 0, End: last }[event.key];
  if (event.key === "Escape") point(-1);
  if (to === undefined || last < 0) return;
  event.preventDefault();
  point(Math.max(0, Math.min(last, to)), true);
}
