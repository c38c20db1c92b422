// Uniques: how many unique values the counters of the chart, and those of the table's rows, had in the range. Counters
// that have none say nothing, and if all have none, nothing of this is shown.
import { $, repeat } from "./dom.js";
import { number, seconds, apart } from "./format.js";
import { post, clock } from "./api.js";
import { inLine } from "./figure.js";
import { nameOf, spanOf } from "./range.js";
import { view, onChange } from "./view.js";

const mostAsked = 60; // counters in one question: each costs Redis a union for every cell of the range
let reach = 0; // how far back the tiers go, in milliseconds
let of = ""; // what found is of
let found = new Map(), heard = () => {}, keysOfRows = () => [];

// visitorsOf is what is known of a counter: {text, title}.
export const visitorsOf = (key) => found.get(key);

// hasUniques reports whether a counter has some. Without a worker, every counter may have more.
export const hasUniques = ({ lower, upper }) => (upper ?? lower) > 0;

// start takes the answer of /v1/about, which counters the table shows, and what is to be drawn again.
export function start(about, rows, draw) {
  if (!about.features.uniques) return;
  [keysOfRows, heard] = [rows, draw];
  reach = Math.max(...about.unique_tiers.map((tier) => seconds(tier.window) * 1000));
  onChange(repeat(load));
}

async function load() {
  const span = spanOf(view), lines = view.lines.flatMap(({ key }) => key ?? []);
  const keys = [...new Set([...lines, ...keysOfRows()])].slice(0, mostAsked);
  const now = () => JSON.stringify([view.lines, view.range, view.from, view.to]), asked = now();
  if (keys.length === 0 || clock.now() - span.from > reach + 2000) {
    show([]);
    return 5;
  }
  const time = span.window
    ? { windows: [span.window] }
    : { from: span.from, ...(span.to === null ? {} : { to: span.to }) };
  try {
    const { uniques } = await post("v1/uniques", { keys, ...time });
    if (asked !== now()) return 0;
    show(uniques.filter(hasUniques));
    of = asked;
  } catch {
    if (of !== asked) show([]); // else they stay: the totals say what is wrong
  }
  return span.to === null ? 10 : 60;
}

// inWords returns the whole of it in words.
function inWords({ key, estimate, lower, upper, confidence }) {
  const sure = `with a confidence of ${Math.round(confidence * 100)}\u202f%`;
  const bounds = upper === null
    ? `at least ${number(lower)}, ${sure}; no worker has counted lately, so how many more is unknown`
    : `between ${number(lower)} and ${number(upper)}, ${sure}`;
  return `${apart(key)}: about ${number(estimate)} unique ${nameOf(view)}, ${bounds}`;
}

function show(uniques) {
  found = new Map(
    uniques.map((one) => [one.key, { text: inLine({ ...one, total: one.estimate }), title: inWords(one) }]),
  );
  $("of").hidden = view.of !== "uniques" && !view.lines.some(({ key }) => found.has(key));
  heard();
}
