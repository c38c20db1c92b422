// Uniques: how many unique values the counters of the chart had in its range, with their hits. Counters that have none
// say nothing, and if all have none, nothing of this is shown.
import { $, el, repeat } from "./dom.js";
import { number, seconds, shown, apart } from "./format.js";
import { post, clock } from "./api.js";
import { brief } from "./figure.js";
import { nameOf, spanOf } from "./range.js";
import { view, onChange } from "./view.js";

let reach = 0; // how far back the tiers go, in milliseconds

// start takes the answer of /v1/about.
export function start(about) {
  if (!about.features.uniques) return;
  reach = Math.max(...about.unique_tiers.map((tier) => seconds(tier.window) * 1000));
  const reload = repeat(load);
  onChange(reload);
}

async function load() {
  const span = spanOf(view);
  const lines = view.lines.map((line, index) => ({ ...line, index })).filter(({ key }) => key !== undefined);
  const asked = JSON.stringify([lines, view.range, view.from, view.to]);
  if (lines.length === 0 || clock.now() - span.from > reach + 2000) return show([]);
  const keys = lines.map(({ key }) => key);
  const time = span.window
    ? { windows: [span.window] }
    : { from: span.from, ...(span.to === null ? {} : { to: span.to }) };
  try {
    const { uniques } = await post("v1/uniques", { keys, ...time });
    const now = view.lines.map((line, index) => ({ ...line, index })).filter(({ key }) => key !== undefined);
    if (asked !== JSON.stringify([now, view.range, view.from, view.to])) return 0;
    show(
      uniques.map((found, i) => ({ ...found, line: lines[i].index }))
        .filter(({ lower, upper }) => lower > 0 || upper > 0),
    );
  } catch {
    show([]); // the totals say what is wrong
  }
  return span.to === null ? 10 : 60;
}

// inShort is an estimate in words, as short as its precision allows.
export function inShort({ estimate, lower, upper }) {
  if (upper === null) return `≥\u202f${brief(lower)} unique`;
  if (lower === upper) return `${brief(estimate)} unique`;
  const percent = (Math.max(upper - estimate, estimate - lower) / estimate) * 100;
  if (!(percent <= 50)) return `${brief(lower)} – ${brief(upper)} unique`;
  return `${brief(estimate)} unique, ±\u202f${percent < 10 ? Math.ceil(percent * 10) / 10 : Math.ceil(percent)}\u202f%`;
}

// inWords returns the whole of it in words.
function inWords({ key, estimate, lower, upper, confidence }) {
  const sure = `with a confidence of ${Math.round(confidence * 100)}\u202f%`;
  const bounds = upper === null
    ? `at least ${number(lower)}, ${sure}; no worker has counted lately, so how many more is unknown`
    : `between ${number(lower)} and ${number(upper)}, ${sure}`;
  return `${apart(key)}: about ${number(estimate)} unique ${nameOf(view)}, ${bounds}`;
}

function show(found) {
  const list = $("uniques"), text = JSON.stringify(found.map((one) => [one.key, one.line, inShort(one)]));
  $("of").hidden = found.length === 0 && view.of === "hits";
  if (list.dataset.found !== text) {
    list.dataset.found = text;
    list.replaceChildren(...found.map(({ line, key, ...rest }) => el("li", { "data-line": line },
      el("span", { class: "swatch", "aria-hidden": "true" }),
      el("bdi", {}, shown(key)),
      el("span", { class: "estimate" }, inShort(rest)))));
  }
  found.forEach((one, i) => { list.children[i].title = inWords(one); });
  return 10;
}
