// How a total is written: as short as it is known, with the whole number and its bounds for those who ask.
import { number, inFull, atMinute, onDay, moment, overflowOf, roughly, short } from "./format.js";
import { clock } from "./api.js";

const threeDigits = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

// brief writes a number with three digits: 69.3 K. Small ones are written whole.
export const brief = (n) => (n < 10_000 ? number(n) : threeDigits.format(n).replace(/[A-Z]$/, "\u202f$&"));

// describe words a total in the same way everywhere. gap is what the total may lack (gapOf). value and margin are the
// number and how far off it may be. note is the margin and what is missing; "exact" only if nothing is. sentences
// have all of it.
export function describe({ total, lower, upper, uncounted }, gap) {
  const words = (value, margin, sentences, otherwise = "") => ({
    value,
    margin,
    note: [margin, gap?.short].filter(Boolean).join(", ") || otherwise,
    sentences: [...sentences, ...(gap && !sentences.includes(gap.long) ? [gap.long] : [])],
  });
  if (uncounted) return words("–", "", [uncounted]);
  if (upper === null) {
    const sentences = [`At least ${number(lower)}.`, gap?.long ?? unbounded];
    return words(`≥\u202f${brief(lower)}`, "", sentences, "upper bound unknown");
  }
  if (lower === upper) {
    return words(brief(total), "", [gap ? `${number(total)} counted.` : `Exactly ${number(total)}.`], "exact");
  }
  const uncut = gap?.kind === "overflow" && lower === total; // the overflow alone makes the margin
  const percent = (Math.max(upper - total, total - lower) / total) * 100;
  return words(
    brief(total),
    percent <= 50 ? `± ${Math.ceil(percent)}\u202f%` : `${brief(lower)} – ${brief(upper)}`,
    [
      `${number(total)}, between ${number(lower)} and ${number(upper)}.`,
      ...(uncut ? [] : ["The range cuts a cell, which counts in proportion to time."]),
    ],
  );
}

const unbounded = "No worker has counted lately. How many more hits were stored since is unknown.";

// inLine is a total with its margin.
export function inLine(total) {
  const { value, margin } = describe(total);
  return `${value} ${margin}`.trim();
}

// beyondChance reports whether two counts differ by more than twice the standard deviation of their difference, which
// is the root of their sum for hits that come independently of each other.
export const beyondChance = (a, b) => Math.abs(a - b) > 2 * Math.sqrt(a + b);

// changeOf compares two totals. Where their bounds overlap, more or fewer is unknown. Its size
// is what it sorts by.
function changeOf(now, before) {
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
  const far = beyondChance(now.total, before.total), ratio = now.total / before.total;
  const found = {
    title: far ? title : `${title} Chance alone makes such a difference (2·√n).`,
    kind: far ? (ratio < 1 ? "down" : "up") : "none",
    size: ratio - 1,
  };
  if (before.total === 0) return { ...found, text: "new" };
  const percent = Math.abs(ratio - 1) * 100;
  if (percent > 999) return { ...found, text: `× ${number(Math.round(ratio))}` };
  const digits = percent >= 1 ? Math.round(percent) : Math.max(.1, Math.round(percent * 10) / 10);
  return { ...found, text: `${ratio < 1 ? "−" : "+"}${digits}\u202f%` };
}

// changeOver is changeOf, unless counting is younger than the period before: then that of the last two equal periods,
// recent and before, which are so many milliseconds long.
export function changeOver(now, before, recent, length) {
  if (!recent || now.upper === null || now.uncounted) return changeOf(now, before);
  const change = changeOf(recent, before), over = roughly(length / 1000);
  if (change.size === -Infinity) return change;
  return {
    ...change,
    text: `${change.text} in ${over}`,
    title: `Counting is younger than the range, so this compares the last ${over} with the ${over} before. ` +
      change.title,
  };
}

// withoutRoom returns what totals lack if some of these names are of overflow counters.
export function withoutRoom(names) {
  const all = [...new Set(names.flatMap((name) => overflowOf(name) ?? []))];
  if (all.length === 0) return undefined;
  const under = all.includes("") ? "" : ` under ${all.slice(0, 3).map(short).join(", ")}`;
  return {
    kind: "overflow",
    short: "names without room",
    long: `Some names${under} have no room: their hits are counted together (INGEST_MAX_NAMES, INGEST_NAMES_MEMORY).`,
  };
}

// gapOf returns what may be missing in a total: a young counter is not a lossy one, and hits that wait to be counted
// are not lost. overflow is a name, or several.
export function gapOf({ complete, upper, counting_since: since, from, to, overflow = [] }) {
  if (complete) return withoutRoom([overflow].flat());
  if (upper === null) {
    return {
      kind: "late",
      short: "upper bound unknown",
      long: unbounded,
    };
  }
  const begun = since ? Date.parse(since) : 0;
  if (begun > new Date(from)) {
    const now = clock.now(), when = now - begun < 86400_000 ? moment(begun, now) : inFull(begun);
    if (begun >= new Date(to)) {
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
