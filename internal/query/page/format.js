// Numbers and times in human-readable form, in the reader's own language where it matters little,
// and in English where words are made of them.

const grouped = new Intl.NumberFormat("en");
const fewDigits = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (n) => grouped.format(n);
export const compact = (n) => (Math.abs(n) < 10000 ? grouped.format(n) : fewDigits.format(n));
export const count = (n, one) => `${number(n)} ${one}${n === 1 ? "" : "s"}`;

// sentence makes one of a text of the service.
export function sentence(text) {
  const trimmed = text.trim();
  return trimmed === "" ? "" : trimmed[0].toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}

// shown writes a name so that every character is visible. Characters that turn the direction of what follows
// are written as JSON writes them: a name could look like another one with them, or change the text around
// it.
export const shown = (name) => name.replace(/\p{Bidi_Control}/gu, (c) =>
  `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

// apart is shown for a text without elements: letters that are written from the right leave what follows alone.
export const apart = (name) => (/[^ -~]/.test(name) ? `\u2068${shown(name)}\u2069` : name);

// overflowOf is what the names begin with whose hits an overflow counter, or the sum of all of these, has.
export const overflowOf = (name) => name.match(/(.*)~other\.(\d+|\*)$/s)?.[1];
export const aboutOverflow = (name) => (overflowOf(name) === undefined ? "" : ": hits of names without room");

// short is a name for a sentence that has room for a part of it.
export const short = (name) => apart(name.length > 40 ? `${name.slice(0, 40)}…` : name);

const units = { s: 1, m: 60, h: 3600, d: 86400, w: 604800, mo: 2629746, y: 31556952 }; // a month and a year on average
const names = { s: "second", m: "minute", h: "hour", d: "day", w: "week", mo: "month", y: "year" };
const unitOf = (text) => text.replace(/^\d+/, "");

// Steps of a calendar that are longer than all that /v1/about offers: the service answers them, too.
export const longSteps = ["1mo", "1y"];

// ofZone reports whether a step is one of a calendar, which depends on the zone.
export const ofZone = (step) => /^1(d|w|mo|y)$/.test(step);

// seconds is the length of a duration such as 15m.
export const seconds = (text) => Number.parseInt(text, 10) * units[unitOf(text)];

// spoken writes a window out: 15m is 15 minutes, and month, which is one of a calendar, the month so far.
export function spoken(text) {
  if (!/^[0-9]/.test(text)) return text === "yesterday" ? "the day before" : `the ${text.replace("to", "")} so far`;
  const n = Number.parseInt(text, 10);
  return count(n, names[unitOf(text)]);
}

// brief writes it with the unit cut short: 15 min.
export const brief = (text) => `${Number.parseInt(text, 10)} ${text.at(-1) === "m" ? "min" : unitOf(text)}`;

// ago is a length of time in a few words.
export function ago(s) {
  if (s < 10) return `${Math.max(0, s).toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

// roughly is a length of time in whole numbers.
export const roughly = (s) => (s < 120 ? `${Math.round(s)} s` : ago(s));

const date = { day: "numeric", month: "short" }, time = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const day = new Intl.DateTimeFormat("en", date), minute = new Intl.DateTimeFormat("en", time);
const second = new Intl.DateTimeFormat("en", { ...time, second: "2-digit" });
const full = new Intl.DateTimeFormat("en", { weekday: "short", ...date, ...time });

export const onDay = (t) => day.format(t);
export const atMinute = (t) => minute.format(t);
export const atSecond = (t) => second.format(t);
export const inFull = (t) => full.format(t);

// moment is a time, as short as is clear today.
export function moment(t, now = Date.now()) {
  if (Math.abs(now - t) < 600_000) return atSecond(t);
  return new Date(t).toDateString() === new Date(now).toDateString() ? atMinute(t) : inFull(t);
}
