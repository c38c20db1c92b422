// The row above the chart: how many hits the only line of the chart had, or all counters, how that has changed, its
// peak, its visitors, and how many hits there are per second now. Each of these figures chooses what the chart shows.
import { $, put, repeat } from "./dom.js";
import { atMinute, brief as duration, moment, sentence, shown } from "./format.js";
import { ask, askOrLast, clock } from "./api.js";
import { brief, changeOver, describe, gapOf } from "./figure.js";
import { largest, mostListed, totalIn } from "./counts.js";
import { compares, halvesOf, nameOf, spanOf, since, windowBefore, windowOf } from "./range.js";
import { isTooMuch } from "./series.js";
import { visitorsOf } from "./uniques.js";
import { change, linesIn, onChange, sameLine, sumLine, view } from "./view.js";

const rateOver = 10_000; // milliseconds; so that a burst does not make the rate jump
const once = 60_000; // how long the period before is kept, at least

let found = {}, before = {}, why = "", readPeak; // what is known of the subject, or why its sum is not
let reload, reloadRate;

// subject is what the figures are about: the line of the chart, or the sum of several. A counter that is in a sum of
// prefix is not added again.
export function subject() {
  if (view.lines.length === 1) return view.lines[0];
  if (!view.chosen) return sumLine("");
  const within = (a, b) => a !== b && b.prefix !== undefined && (a.key ?? a.prefix).startsWith(b.prefix);
  const parts = view.lines.filter((line) => !view.lines.some((other) => within(line, other)));
  if (parts.length === 1) return parts[0];
  const names = parts.map(({ name }) => name).join(" + ");
  return { name: parts.length < 4 ? names : `${parts.length} lines together`, parts };
}
const question = () => JSON.stringify([subject(), view.range, view.from, view.to]);

// start asks for the total, and for the rate if the finest cells are short enough to have one. seePeak has the chart
// show the moment of the peak.
export function start({ tiers: [{ cell }] }, seePeak) {
  readPeak = seePeak;
  reload = repeat(load);
  if (/^([1-9]|10)s$/.test(cell)) reloadRate = repeat(loadRate);
  $("sum-rate").hidden = !reloadRate;
  onChange(() => {
    if (found.of !== question()) put($("sum-peak").querySelector("b"), "–");
    draw();
    reload();
    reloadRate?.();
  });
  for (const button of $("figures").querySelectorAll("[data-of]")) {
    button.addEventListener("click", () => change({ of: button.dataset.of }));
  }
  $("sum-peak").addEventListener("click", () => {
    if (view.of !== "hits") change({ of: "hits" });
    readPeak(Number($("sum-peak").dataset.at));
  });
  $("sum-all").addEventListener("click", () => change({ lines: [] }));
  draw();
}

async function load() {
  const line = subject(), span = spanOf(view), of = question();
  try {
    const now = await totalIn(line, windowOf(span), askOrLast);
    if (of !== question()) return 0;
    [found, why] = [{ of, now }, ""];
    draw();
    if (compares(view, span) && !now.stale) await compare(line, span, now);
  } catch (error) {
    if (error.status !== 403 && !isTooMuch(error)) return 3; // the notice says what is wrong
    why = error.status === 403 ? sentence(error.message) : "Too many to add up: these are the largest.";
    draw();
  }
  return span.to ? 60 : line.prefix === "" ? 2 : 5;
}

// hear takes a total that has come by the live connection.
export function hear(total) {
  const of = question();
  if (total.key !== subject().key || total.window !== spanOf(view).window || found.of !== of) return;
  found = { of, now: total };
  draw();
}

// compare asks for the period before, seldom.
async function compare(line, span, now) {
  const of = question(), halves = halvesOf(span, Date.parse(now.counting_since ?? "") || since, now.asOf);
  const kept = halves ? 5000 : once;
  if (before.of !== of || performance.now() - before.at > kept) {
    const [total, recent] = await Promise.all([
      totalIn(line, windowBefore(halves ?? span)),
      halves ? totalIn(line, windowOf(halves)) : undefined,
    ]);
    before = { of, total, recent, length: halves?.length, at: performance.now() };
  }
  draw();
}

async function loadRate() {
  const of = question();
  let rate;
  try {
    const to = Math.floor(clock.now() / 1000 - 2) * 1000; // hits of the last second may not be counted yet
    rate = await (why ? rateListed : rateOf)({ from: to - rateOver, to });
  } catch {
    rate = undefined; // the notice says what is wrong
  }
  if (of !== question()) return 0;
  put($("sum-rate").querySelector("b"), rate ?? "–");
  $("sum-rate").title = rate === undefined ? "" : `The mean of the last ${rateOver / 1000} seconds.`;
  return 3;
}

const perSecond = (n) => {
  const rate = n / (rateOver / 1000);
  return rate < 10 ? String(Math.round(rate * 10) / 10) : brief(Math.round(rate));
};

async function rateOf(span) {
  const { total, upper } = await totalIn(subject(), windowOf(span), ask);
  return upper === null ? undefined : perSecond(total);
}

// rateListed is that of the counters that one answer lists.
async function rateListed(span) {
  const { top, whole, floor, stale } = await largest(span, mostListed);
  const has = ({ key, prefix }, name) => (key === undefined ? name.startsWith(prefix) : name === key);
  const counted = top.filter(({ key: name }) => linesIn(subject()).some((line) => has(line, name)));
  const sum = counted.reduce((n, { total }) => n + total, 0);
  return stale || floor === null ? undefined : `${whole ? "" : "≥\u202f"}${perSecond(sum)}`;
}

// fallBack takes what the table adds up, for a reader who cannot have the sum: {now, gap, before, recent, length}.
export function fallBack(sum) {
  if (!why) return;
  found = { of: question(), now: sum.now, gap: sum.gap };
  before = { of: found.of, total: sum.before, recent: sum.recent, length: sum.length };
  draw();
}

// showPeak takes the lines of the chart.
export function showPeak({ all, step, uniques }) {
  const parts = linesIn(subject());
  const lines = all.filter((one) => parts.some((part) => sameLine(one, part)));
  if (uniques || lines.length < parts.length) return;
  const add = (i) => lines.reduce((n, { points }) => n + (points[i]?.[2] ?? 0), 0);
  const [at, , most] = lines[0].points.map(([t, end], i) => [t, end, add(i)])
    .reduce((a, b) => (b[2] > a[2] ? b : a), [0, 0, 0]);
  $("sum-peak").dataset.at = at;
  put($("sum-peak").querySelector(".label"), `Peak per ${duration(step).replace(/^1 /, "")}`);
  put($("sum-peak").querySelector("b"), brief(most));
  const when = clock.now() - at < 86400_000 ? `at ${atMinute(at)}` : moment(at, clock.now());
  put($("sum-peak").querySelector(".note"), most === 0 ? "" : when);
}

// draw shows what is known.
export function draw() {
  const line = subject(), all = line.prefix === "", known = found.of === question();
  $("summary").hidden = !$("welcome").hidden;
  $("sum-all").hidden = all || !view.chosen;
  put($("sum-name"), shown(line.name));
  put($("sum-when"), nameOf(view));
  put($("sum-why"), why && view.lines.length > 0 ? why : "");
  for (const button of $("figures").querySelectorAll("[data-of]")) {
    button.setAttribute("aria-pressed", String(button.dataset.of === view.of));
  }
  const visitors = visitorsOf(line.key);
  $("sum-visitors").hidden = !visitors;
  $("sum-visitors").title = visitors?.title ?? "";
  const [value, ...margin] = (visitors?.text ?? "").split(" ");
  put($("sum-visitors").querySelector("b"), value);
  put($("sum-visitors").querySelector(".note"), margin.join(" "));
  drawHits(known ? found : {});
}

function drawHits({ now, gap = now && gapOf(now) }) {
  const told = gap?.kind === "uncounted" && now.total === 0 ? { ...now, uncounted: gap.long } : now;
  const words = told ? describe(told, gap) : { value: "–", note: "", sentences: [] };
  put($("sum-hits").querySelector("b"), words.value);
  put($("sum-hits").querySelector(".note"), words.note);
  $("sum-hits").title = words.sentences.join(" ");
  const of = before.of === question() && compares(view, spanOf(view)) ? before : {};
  const changed = $("sum-change"), known = told && told.upper !== null;
  const change = known && changeOver(told, of.total, of.recent, of.length);
  $("sum-change").hidden = !compares(view, spanOf(view));
  put(changed, change?.text ?? "");
  changed.dataset.kind = change?.kind ?? "none";
  changed.title = change?.title ?? "";
}
