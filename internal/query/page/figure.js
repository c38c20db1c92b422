// How a total is written: as short as it is known, with the whole number and its bounds for those who ask.
import { number, inFull, atMinute, onDay, moment } from "./format.js";
import { clock } from "./api.js";

const threeDigits = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

// brief writes a number with three digits: 69.3 K. Small ones are written whole.
export const brief = (n) => (n < 10_000 ? number(n) : threeDigits.format(n).replace(/[A-Z]$/, "\u202f$&"));

// figure is a total in two parts: the number, and how far off it may be. A total that no worker has counted
// lately is only a lower bound, and a time that was not counted has none.
export function figure({ total, lower, upper, uncounted }) {
  if (uncounted) return { value: "–", margin: "" };
  if (upper === null) return { value: `≥\u202f${brief(lower)}`, margin: "" };
  if (lower === upper) return { value: brief(total), margin: "" };
  const percent = (Math.max(upper - total, total - lower) / total) * 100;
  if (!(percent <= 50)) return { value: brief(total), margin: `${brief(lower)} – ${brief(upper)}` };
  return { value: brief(total), margin: `± ${Math.ceil(percent)}\u202f%` };
}

// inLine is a total with its margin.
export const inLine = (total) => Object.values(figure(total)).join(" ").trim();

// explain returns all about a total in sentences.
export function explain({ total, lower, upper, uncounted }) {
  if (uncounted) return [uncounted];
  if (upper === null) return [`At least ${number(lower)}.`, "No worker has counted lately: how many more is unknown."];
  if (lower === upper) return [`Exactly ${number(total)}.`];
  return [
    `${number(total)}, between ${number(lower)} and ${number(upper)}.`,
    "The range cuts a cell, which counts in proportion to time.",
  ];
}

// changeOf compares two totals. Where their bounds overlap, more or fewer is unknown. Its size
// is what it sorts by.
export function changeOf(now, before) {
  const none = (title) => ({ text: "–", title, kind: "none", size: -Infinity });
  if (now.uncounted) return none("");
  if (now.upper === null) return { ...none("No worker has counted lately."), text: "unknown" };
  if (!before) return none("The period before is not compared.");
  if (!before.complete) return none("Not all of the period before was counted.");
  const exact = now.lower === now.upper && before.lower === before.upper;
  const bounds = before.lower === before.upper
    ? ""
    : `, between ${number(before.lower)} and ${number(before.upper)}`;
  const title = `Before: ${number(before.total)}${bounds}.`;
  if (now.lower <= before.upper && before.lower <= now.upper) {
    return {
      text: exact ? "same" : "≈ same",
      title: exact ? title : `${title} The bounds overlap.`,
      kind: "none",
      size: 0,
    };
  }
  if (before.total === 0) return { text: "new", title, kind: "up", size: Infinity };
  const ratio = now.total / before.total, percent = Math.abs(ratio - 1) * 100;
  if (percent > 999) return { text: `× ${number(Math.round(ratio))}`, title, kind: "up", size: ratio - 1 };
  const digits = percent >= 1 ? Math.round(percent) : Math.max(.1, Math.round(percent * 10) / 10);
  return { text: `${ratio < 1 ? "−" : "+"}${digits}\u202f%`, title, kind: ratio < 1 ? "down" : "up", size: ratio - 1 };
}

// gapOf returns what is missing in a total that is not complete: a young counter is not a lossy one, and hits that wait
// to be counted are not lost.
export function gapOf({ complete, upper, counting_since: since, from, to }) {
  if (complete) return undefined;
  if (upper === null) {
    return {
      kind: "late",
      short: "upper bound unknown",
      long: "No worker has counted lately. How many more hits were stored since is unknown.",
    };
  }
  const begun = since ? Date.parse(since) : 0;
  if (begun > from) {
    const now = clock.now(), when = now - begun < 86400_000 ? moment(begun, now) : inFull(begun);
    if (begun >= to) {
      return {
        kind: "uncounted",
        short: "not counted",
        long: `Counting began at ${when}, after this range: what happened in it was not counted.`,
      };
    }
    return {
      kind: "young",
      short: `since ${now - begun < 86400_000 ? atMinute(begun) : onDay(begun)}`,
      long: `Counting began at ${when}, inside this range. Earlier hits were not counted.`,
    };
  }
  return {
    kind: "lost",
    short: "hits missing",
    long: "Hits of this range are known to be missing: they were discarded before they could be counted.",
  };
}
