// The row above the chart: how many hits all counters had, how that has changed, and how many there are per second now.
import { $, put, repeat } from "./dom.js";
import { brief, explain, figure } from "./figure.js";
import { clock } from "./api.js";
import { largest, mostListed } from "./counts.js";
import { nameOf } from "./range.js";
import { view } from "./view.js";

const rateOver = 10_000; // milliseconds; so that a burst does not make the rate jump

// start asks for the rate, if the finest cells are short enough to have one.
export function start({ tiers: [{ cell }] }) {
  if (/^([1-9]|10)s$/.test(cell)) repeat(load);
}

async function load() {
  try {
    const to = Math.floor(clock.now() / 1000 - 2) * 1000; // hits of the last second may not be counted yet
    const { top, whole, floor, stale } = await largest({ from: to - rateOver, to }, mostListed);
    if (stale || floor === null) throw stale ?? new Error("no worker has counted lately");
    const rate = top.reduce((sum, { total }) => sum + total, 0) / (rateOver / 1000);
    put(
      $("sum-rate").firstElementChild,
      `${whole ? "" : "≥\u202f"}${rate < 10 ? Math.round(rate * 10) / 10 : brief(Math.round(rate))}`,
    );
    $("sum-rate").title = `The mean of the last ${rateOver / 1000} seconds${whole ? "" : ", of the largest counters"}.`;
  } catch {
    put($("sum-rate").firstElementChild, "–"); // the notice says what is wrong
    $("sum-rate").title = "";
  }
  return 3;
}

// drawSummary shows the sum: {now, change, whole}. whole is false if it is that of the largest counters only.
export function drawSummary({ now, change, whole }, compared) {
  const { value, margin } = figure(now);
  const [hits, bounds] = $("sum-hits").children;
  const changed = $("sum-change").firstElementChild;
  $("summary").hidden = !$("welcome").hidden;
  put($("sum-when"), nameOf(view));
  put(hits, value);
  put(bounds, margin || (now.lower === now.upper && !now.uncounted ? "exact" : ""));
  $("sum-hits").title = whole
    ? explain(now).join(" ")
    : "The largest counters together. There are more of them than one answer lists.";
  $("sum-changed").hidden = !compared;
  put(changed, change?.text ?? "–");
  changed.dataset.kind = change?.kind ?? "none";
  changed.title = change?.title ?? "";
}
