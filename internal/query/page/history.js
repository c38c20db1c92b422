// What was decided under a limit over the last day, from the counters of its decisions, and who is refused most.
import { el } from "./dom.js";
import { aboutOverflow, apart, atMinute, compact, count, number, sentence, shown } from "./format.js";
import { ask, clock } from "./api.js";
import { totalIn } from "./counts.js";
import { bars, keep, snippet } from "./pieces.js";
import { isTooMuch, seriesOfSum } from "./series.js";

const span = "24h", step = "30m", half = 1_800_000, shownHalves = 48, listed = 10;

// drawHistory fills a box with what the counters of a limit have, or with how to get counters.
export async function drawHistory(box, limit) {
  if (!limit.count) return keep(box, [limit.limit], () => explain(limit.limit));
  const shadow = limit.mode === "shadow", over = shadow ? limit.count.would_refuse : limit.count.refused;
  const prefix = prefixOf(over);
  const last = Math.floor(clock.now() / half) * half, first = last - (shownHalves - 1) * half;
  try {
    const [allowed, refused, top, all] = await Promise.all([
      series(limit.count.allowed, first),
      series(over, first),
      prefix ? ask("v1/top", [["prefix", prefix], ["window", span], ["limit", listed]]) : { top: [] },
      prefix ? totalIn({ prefix }, { window: span }).catch((error) => {
        if (!isTooMuch(error)) throw error;
      }) : undefined,
    ]);
    const keys = top.top.filter(({ total }) => total > 0), notes = [allowed, refused].flatMap(({ note }) => note ?? []);
    const more = othersOf(keys, top, all);
    keep(box, [limit.limit, shadow, last, allowed.points, refused.points, keys, notes, more], () => [
      ...draw(last, { allowed, refused, verb: shadow ? "would be refused" : "refused" }),
      ...notes.map((note) => el("p", { class: "note" }, note)),
      ...(keys.length > 0 ? [refusedMost(keys, prefix, limit, more)] : []),
    ]);
  } catch (error) {
    keep(box, [error.message], () => [el("p", { class: "note bad", role: "alert" }, sentence(error.message))]);
  }
  return undefined;
}

const ofKeys = (name) => name.endsWith("{key}");

// prefixOf is what the counters of keys begin with, if a limit has some.
const prefixOf = (names = []) => names.find(ofKeys)?.slice(0, -"{key}".length);

// series comes from the first counter without {key}, which has the sum of any number of keys, or else from those of
// keys. Steps begin with the first, and so with half hours.
async function series(names, first) {
  if (!names) return { points: [] };
  const sum = names.find((name) => !ofKeys(name));
  return seriesOfSum([sum ? ["key", sum] : ["prefix", prefixOf(names)], ["from", first], ["step", step]]);
}

// othersOf says what keys that are not listed have. all is undefined if they are too many to be added up.
function othersOf(keys, { floor }, all) {
  if (!all) return floor > 0 ? `All others: at most ${count(floor, "hit")} each.` : "";
  const more = all.counters - keys.length, hits = keys.reduce((rest, { total }) => rest - total, all.total);
  return more > 0 ? `${number(more)} more: ${count(Math.max(0, hits), "hit")}.` : "";
}

const hitsOf = ({ points }) => points.reduce((sum, [, n]) => sum + n, 0);

// draw stacks what was refused on what was allowed, up to the half hour that began last.
function draw(last, { allowed, refused, verb }) {
  const at = [allowed, refused].map(({ points }) => new Map(points));
  const text = `${number(hitsOf(allowed))} hits allowed, ${number(hitsOf(refused))} ${verb}`;
  return [
    el("p", { class: "legend" }, el("b", { class: "allowed" }), ` ${compact(hitsOf(allowed))} allowed `,
      el("b", { class: "refused" }), ` ${compact(hitsOf(refused))} ${verb}`),
    ...bars(`In the last 24 hours: ${text}`, Array.from({ length: shownHalves }, (_, i) => {
      const t = last - (shownHalves - 1 - i) * half, [a, b] = at.map((list) => list.get(t) ?? 0);
      return {
        t,
        title: `${atMinute(t)} to ${atMinute(t + half)}: ${number(a)} allowed, ${number(b)} ${verb}`,
        parts: [[b, "refused"], [a, "allowed"]],
      };
    })),
  ];
}

// refusedMost lists keys. Each leads to its hits over time, among the counters.
function refusedMost(keys, prefix, limit, more) {
  const row = ({ key, total }) => {
    const name = key.slice(prefix.length), about = aboutOverflow(key);
    const href = `?${new URLSearchParams({ key })}`, bdi = about ? { class: "note", title: shown(key) + about } : {};
    return el("li", {}, el("a", { href, "data-id": key }, el("bdi", bdi, shown(name))),
      el("span", { class: "number", title: `${number(total)} hits of ${apart(name)}` }, compact(total)));
  };
  return el("div", {}, el("h3", {}, limit.mode === "shadow" ? "Most over the limit" : "Refused most"),
    el("ol", { class: "most" }, ...keys.map(row)), more && el("p", { class: "note" }, more));
}

function explain(name) {
  const list = (kind, root) => `\n      ${kind}: ["sum.${root}.{limit}", "${root}.{limit}.{key}"]`;
  const file = `limits:\n  - name: ${name}\n    count:${list("allowed", "usage")}${list("refused", "refused")}`;
  return [
    el("p", { class: "note" }, "No counters have its decisions. With count in the file of limits they do:"),
    snippet(file),
  ];
}
