// The range of time that the page is about: which ones the tiers hold, and from when to when each of them
// goes. Days and months are those of the reader's own time zone.
import { seconds, spoken, brief, inFull, longSteps } from "./format.js";
import { clock } from "./api.js";
import { lengthOf, usualStep } from "./series.js";

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";
export const zoneName = /^[A-Z]/.test(zone) ? zone : "";

export const zoned = { today: "today", yesterday: "yesterday", month: "this month", custom: "a range of your own" };

// What the service answers about itself: offer fills them in.
export let rolling = []; // windows that end now
export let ranges = []; // all that the reader can choose
export let usual = ""; // what a reader sees who has chosen none
export let reach = 0; // how far back the tiers go, in milliseconds
export let since = 0; // when counting began
let steps = [], tiers = [];

const longer = ["1h", "24h", "7d", "30d", "90d", "365d"];
const short = ["1m", "5m", "15m"];
const fillers = ["6h", "15m", "5m", "1m"];
const few = 3;
const dayLength = 86400_000;

// offer takes what /v1/about answers.
export function offer(about, now = clock.now()) {
  reach = Math.max(...about.tiers.map((tier) => seconds(tier.window) * 1000));
  since = Date.parse(about.counting_since ?? "") || 0;
  steps = [...about.steps, ...longSteps];
  tiers = about.tiers.map(({ cell, window }) => ({ cell: lengthOf(cell), window: lengthOf(window) }));
  const has = (window) => about.windows.includes(window);
  rolling = longer.filter(has);
  for (const window of [...fillers.filter(has), about.windows.at(-1)]) {
    if (rolling.length < few && !rolling.includes(window)) rolling.push(window);
  }
  usual = fitting(about.windows, since > 0 ? now - since : Infinity);
  for (const window of ["15m", usual]) if (has(window) && !rolling.includes(window)) rolling.push(window);
  rolling.sort((a, b) => seconds(a) - seconds(b));
  const calendar = [["today", 1], ["yesterday", 2], ["month", 31]].filter(([, days]) => days * dayLength <= reach);
  ranges = [...rolling, ...calendar.map(([name]) => name), ...(reach >= 3600_000 ? ["custom"] : [])];
  rolling.push(...short.filter((window) => has(window) && !rolling.includes(window))); // an address may ask for them
}

// fitting is the longest of the windows that people look at first of which counting has filled about the half.
function fitting(windows, age) {
  const first = ["15m", "1h", "24h"].filter((window) => windows.includes(window));
  return first.findLast((window) => seconds(window) * 500 <= age) ?? first[0] ?? windows.at(-1);
}

export const midnight = (t, days = 0) => new Date(t).setHours(24 * days, 0, 0, 0);
// dayBefore is the same time of the clock, a day earlier.
const dayBefore = (t) => new Date(t).setDate(new Date(t).getDate() - 1);
const monthOf = (t, back = 0) => new Date(new Date(t).getFullYear(), new Date(t).getMonth() - back, 1).getTime();

// spanOf is a range as questions need it: window if it ends now and rolls on, else from and to; to is null
// for now. before is the period before, null if no tier reaches back to it: of a day or a month that still
// goes on, as much of the last one.
export function spanOf({ range, from, to }, now = clock.now()) {
  const second = Math.floor(now / 1000) * 1000;
  const span = { window: "", from, to: to || null, before: undefined };
  if (range === "today") {
    Object.assign(span, { from: midnight(now), to: null, before: [midnight(now, -1), dayBefore(second)] });
  }
  else if (range === "yesterday") Object.assign(
    span,
    { from: midnight(now, -1), to: midnight(now), before: [midnight(now, -2), midnight(now, -1)] },
  );
  else if (range === "month") Object.assign(span, {
    from: monthOf(now),
    to: null,
    before: [monthOf(now, 1), Math.min(monthOf(now), monthOf(now, 1) + second - monthOf(now))],
  });
  else if (range === "custom") {
    if (span.to >= now) span.to = null;
    span.from = Math.min(Math.max(from, held(now)), (span.to ?? second) - 1000);
    span.before = [2 * span.from - (span.to ?? second), span.from];
  } else {
    const length = seconds(range) * 1000;
    Object.assign(span, {
      window: range,
      from: now - length,
      to: null,
      before: [second - 2 * length, second - length],
    });
    // the question takes a while to arrive
    if (now - span.before[0] - reach < 5000) span.before = span.before.map((t) => t + 5000);
  }
  if (now - span.before[0] > reach || span.before[0] >= span.before[1]) span.before = null;
  return span;
}

// compares reports whether a span is compared with the period before: the reader may not want it, or no tier
// may hold it.
export const compares = ({ compare }, { before }) => compare && before !== null;

// halvesOf returns the last two equal periods that were counted, if the period before a span was not: so a
// young namespace has changes as soon as two periods of its finest cells are counted. The second one ends at asOf,
// or hits of the open cell would be in neither. A cell of a tier begins where they meet.
export function halvesOf(span, begun, asOf, now = clock.now()) {
  if (!span.window || !(begun > span.before?.[0])) return undefined;
  const end = Math.floor(Math.min(asOf, now - 1000) / 1000) * 1000;
  const length = Math.max(...tiers.map(({ cell, window }) => {
    const most = Math.min((end - begun) / 2, (window - 6000) / 2, span.before[1] - span.before[0]);
    return end - Math.ceil((end - most) / cell) * cell;
  }));
  return length < 2000 ? undefined : { from: end - length, to: end, before: [end - 2 * length, end - length], length };
}

// windowOf writes a span as window and at, which all questions about totals and tops take.
export function windowOf(span, now = clock.now()) {
  if (span.window) return { window: span.window };
  // Whole seconds, which cut none of the finest cells, and a second ago: the service's clock is not exact to
  // the millisecond.
  const end = Math.min(span.to ?? Infinity, now - 1000);
  return lengthTo(span.from, Math.floor(end / 1000) * 1000);
}

export const windowBefore = (span) => lengthTo(...span.before);

function lengthTo(from, to) {
  return { window: `${Math.max(1, Math.round((to - from) / 1000))}s`, at: Math.max(to, from + 1000) };
}

// held is a moment that the tiers hold for a while yet. It stays the same for some time.
function held(now) {
  const grid = Math.max(1000, Math.round(reach / 1000));
  return Math.ceil((now - reach + Math.min(15_000, reach / 3)) / grid) * grid;
}

// stepOf is the step of a small drawing of a span.
export const stepOf = (span, now = clock.now()) => usualStep(steps, (span.to ?? now) - span.from, 61);

// nameOf names the time of a range, behind a noun.
export function nameOf({ range, from, to }) {
  if (range === "custom") return `from ${inFull(from)} to ${to ? inFull(to) : "now"}`;
  return zoned[range] ?? `in the last ${spoken(range)}`.replace("last 1 ", "last ");
}

// labelOf is the text of a button.
export function labelOf(range) {
  if (zoned[range]) return { today: "Today", yesterday: "Yesterday", month: "This month", custom: "Custom" }[range];
  return brief(range);
}
