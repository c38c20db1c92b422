// The axes of a chart: round counts, and round moments of the clocks of a zone.
import { compact } from "./format.js";

// countTicks are round numbers from 0 to above the largest count: whole ones, because hits are.
function countTicks(largest, wanted) {
  const rough = Math.max(1, largest) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(
    1,
    [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough && (s >= 10 || Number.isInteger(s))) ??
      Math.ceil(rough),
  );
  const out = [];
  for (let n = 0; n < largest + step; n += step) out.push(n);
  return out;
}

// linear places counts in proportion.
export function linear(largest, wanted) {
  const ticks = countTicks(largest, wanted);
  return { ticks, part: (n) => n / ticks.at(-1) };
}

// logarithmic places counts by their number of digits. 0 stands on the axis: below the power of ten under the least
// count, lengths shrink to nothing.
export function logarithmic(least, largest, wanted) {
  const base = 10 ** Math.floor(Math.log10(Math.max(1, least))), most = Math.max(largest, base * 2);
  const length = (n) => Math.log10(1 + n / base);
  const powers = Math.ceil(Math.log10(most / base)), every = Math.max(1, Math.ceil(powers / wanted));
  const ticks = [0];
  for (let power = 0; power <= powers; power += every) {
    for (const m of powers <= 2 ? [1, 2, 5] : [1]) {
      if (m * base * 10 ** power <= most) ticks.push(m * base * 10 ** power);
    }
  }
  return { ticks, part: (n) => length(n) / length(most) };
}

export const widest = (ticks) => Math.max(...ticks.map((n) => compact(n).length));

const second = 1000, minute = 60 * second, hour = 60 * minute, day = 24 * hour;
const lengths = [
  5 * second, 10 * second, 15 * second, 30 * second,
  minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute,
  hour, 2 * hour, 3 * hour, 6 * hour, 12 * hour,
  day, 2 * day, 5 * day, 7 * day, 14 * day,
];
const months = [1, 2, 3, 6, 12, 24, 60];

// clocksOf are the clocks of a zone, "" for the reader's own: how far they are ahead of UTC, and how they
// write moments.
const made = new Map();
export function clocksOf(zone) {
  if (made.has(zone)) return made.get(zone);
  const own = { hourCycle: "h23", timeZone: zone || undefined }, format = (options) => {
    const written = new Intl.DateTimeFormat("en", { ...options, ...own });
    return (t) => written.format(t);
  };
  const time = { hour: "2-digit", minute: "2-digit" }, date = { day: "numeric", month: "short" };
  const all = new Intl.DateTimeFormat("en", {
    year: "numeric",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
    second: "numeric",
    ...own,
  });
  const clocks = {
    ahead(t) {
      const at = Object.fromEntries(all.formatToParts(t).map(({ type, value }) => [type, Number(value)]));
      return Date.UTC(at.year, at.month - 1, at.day, at.hour, at.minute, at.second) - Math.floor(t / second) * second;
    },
    // fromClocks is the moment at which the clocks show what UTC's show at s.
    fromClocks: (s) => s - clocks.ahead(s - clocks.ahead(s)),
    day: format(date), month: format({ month: "short" }), year: format({ year: "numeric" }),
    minute: format(time),
    second: format({ ...time, second: "2-digit" }),
    full: format({ weekday: "short", ...date, ...time }),
    dated: format({ ...date, year: "numeric" }),
  };
  made.set(zone, clocks);
  return clocks;
}

// timeTicks are at most n round moments, and the texts below them.
export function timeTicks(from, to, wanted, zone) {
  const clocks = clocksOf(zone), length = lengths.find((l) => (to - from) / l <= wanted);
  if (length === undefined) return monthTicks(from, to, wanted, clocks);
  // Steps of less than an hour are round in every zone that has whole hours or parts of them that are steps, too.
  const shown = (t) => (length < hour ? t : t + clocks.ahead(t));
  const at = (s) => (length < hour ? s : clocks.fromClocks(s));
  const out = [];
  for (let s = Math.ceil(shown(from) / length) * length; at(s) <= to; s += length) if (at(s) >= from) out.push(at(s));
  const midnight = (t) => (t + clocks.ahead(t)) % day === 0;
  return out.map((t) => [
    t,
    length >= day || (length >= hour && midnight(t))
      ? clocks.day(t)
      : length < minute ? clocks.second(t)
      : clocks.minute(t),
  ]);
}

function monthTicks(from, to, wanted, clocks) {
  const first = new Date(from), every = months.find((m) => (to - from) / (m * 30 * day) <= wanted) ?? months.at(-1);
  const out = [];
  for (let month = Math.floor((first.getUTCFullYear() * 12 + first.getUTCMonth()) / every) * every; ; month += every) {
    const t = clocks.fromClocks(Date.UTC(Math.floor(month / 12), month % 12));
    if (t > to) return out;
    if (t >= from) out.push([t, month % 12 === 0 ? clocks.year(t) : clocks.month(t)]);
  }
}
