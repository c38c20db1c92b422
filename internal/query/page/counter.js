// The panel of one counter, below a chart that shows only this one: its totals in all windows, how many unique values
// it had, and the alerts about it.
import { $, el, put, repeat } from "./dom.js";
import { ask, clock, post } from "./api.js";
import { describe, gapOf, inLine } from "./figure.js";
import { apart, moment, shown, spoken } from "./format.js";
import { hasUniques } from "./uniques.js";
import { view, onChange } from "./view.js";

const mostWindows = 8; // that one question may name
let about, drawn; // the counter that the panel shows

const windowsOf = () => about.windows.slice(0, mostWindows);

export function start(given) {
  about = given;
  onChange(repeat(load));
}

const chosen = () => (view.lines.length === 1 ? view.lines[0].key : undefined);

async function load() {
  const key = chosen();
  if (key === undefined) {
    $("counter").hidden = true;
    return 3600;
  }
  if ($("counter").hidden || key !== drawn) draw(key, windowsOf().map((window) => [spoken(window), "–"]));
  const none = () => undefined; // a token may not ask, or a server is away: the other parts are shown all the same
  const [totals, uniques, watch] = await Promise.all([
    post("v1/total", { keys: [key], windows: windowsOf() }).catch(none),
    about.features.uniques
      ? post("v1/uniques", { keys: [key], windows: about.unique_tiers.map(({ window }) => window) }).catch(none)
      : undefined,
    about.features.watch ? ask("v1/watch", [["key", key], ["limit", 1]]).catch(none) : undefined,
  ]);
  if (key !== chosen()) return 0;
  draw(key, [...totalsIn(totals), ...uniquesIn(uniques), ...alertsIn(watch)]);
  return 5;
}

function draw(key, facts) {
  drawn = key;
  put($("counter-title"), apart(key));
  $("counter").hidden = facts.length === 0;
  $("counter-facts").replaceChildren(
    ...facts.map(([name, value, title]) => el("div", { title }, el("dt", {}, name), el("dd", {}, value))),
  );
}

function totalsIn(answer) {
  return (answer?.totals ?? []).map((total) => [
    spoken(total.window),
    inLine(total),
    describe(total, gapOf(total)).sentences.join(" "),
  ]);
}

function uniquesIn(answer) {
  return (answer?.uniques ?? [])
    .filter(hasUniques)
    .map((found) => [`Visitors, ${spoken(found.window)}`, inLine({ ...found, total: found.estimate })]);
}

function alertsIn(answer) {
  return (answer?.states ?? []).map((s) => [
    `Alert ${shown(s.rule)}`,
    `${s.state}${s.condition ? `: ${s.condition} in ${spoken(s.window)}` : ""}`,
    `Since ${moment(Date.parse(s.since), clock.now())}.`,
  ]);
}
