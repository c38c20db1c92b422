// The panel of one counter, below a chart that shows only this one: its totals in all windows, its peak in
// the range, how many unique values it had, and the alerts about it.
import { $, el, put, repeat } from "./dom.js";
import { ask, clock, post } from "./api.js";
import { seriesOf } from "./counts.js";
import { brief, explain, inLine } from "./figure.js";
import { apart, moment, shown, spoken } from "./format.js";
import { nameOf, spanOf } from "./range.js";
import { inShort } from "./uniques.js";
import { view, onChange } from "./view.js";

const mostWindows = 8; // that one question may name
let about;

export function start(given) {
  about = given;
  onChange(repeat(load));
}

const chosen = () => (view.lines.length === 1 ? view.lines[0].key : undefined);

async function load() {
  const key = chosen(), span = spanOf(view), asked = JSON.stringify([key, view.range, view.from, view.to]);
  if (key === undefined) {
    $("counter").hidden = true;
    return 3600;
  }
  const none = () => undefined; // a token may not ask, or a server is away: the other parts are shown all the same
  const [totals, series, uniques, watch] = await Promise.all([
    post("v1/total", { keys: [key], windows: about.windows.slice(0, mostWindows) }).catch(none),
    seriesOf([key], [], span).catch(none),
    about.features.uniques
      ? post("v1/uniques", { keys: [key], windows: about.unique_tiers.map(({ window }) => window) }).catch(none)
      : undefined,
    about.features.watch ? ask("v1/watch", [["key", key], ["limit", 1]]).catch(none) : undefined,
  ]);
  if (asked !== JSON.stringify([chosen(), view.range, view.from, view.to])) return 0;
  put($("counter-title"), apart(key));
  const facts = [...totalsIn(totals), ...peakIn(series?.get(`key ${key}`)), ...uniquesIn(uniques), ...alertsIn(watch)];
  $("counter").hidden = facts.length === 0;
  $("counter-facts").replaceChildren(
    ...facts.map(([name, value, title]) => el("div", { title }, el("dt", {}, name), el("dd", {}, value))),
  );
  return 5;
}

function totalsIn(answer) {
  return (answer?.totals ?? []).map((total) => [spoken(total.window), inLine(total), explain(total).join(" ")]);
}

function peakIn(series) {
  const [at, most] = (series?.points ?? []).reduce((a, b) => (b[1] > a[1] ? b : a), [0, 0]);
  return most === 0
    ? []
    : [
      [
        "Peak",
        `${brief(most)} per ${spoken(series.step).replace(/^1 /, "")}`,
        `At ${moment(at, clock.now())}, ${nameOf(view)}.`,
      ],
    ];
}

function uniquesIn(answer) {
  return (answer?.uniques ?? [])
    .filter(({ upper }) => upper !== 0)
    .map((found) => [`Uniques, ${spoken(found.window)}`, inShort(found).replace(/ unique/, "")]);
}

function alertsIn(answer) {
  return (answer?.states ?? []).map((s) => [
    `Alert ${shown(s.rule)}`,
    `${s.state}${s.condition ? `: ${s.condition} in ${spoken(s.window)}` : ""}`,
    `Since ${moment(Date.parse(s.since), clock.now())}.`,
  ]);
}
