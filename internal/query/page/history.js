// What was decided under a limit over the last day, from the counters of its decisions, and who is refused most.
import { el } from "./dom.js";
import { apart, atMinute, compact, number, sentence, shown } from "./format.js";
import { ask, clock } from "./api.js";
import { bars, keep, snippet } from "./pieces.js";

const span = "24h", step = "30m", half = 1_800_000, shownHalves = 48, listed = 10;

// drawHistory fills a box with what the counters of a limit have, or with how to get counters.
export async function drawHistory(box, limit) {
  if (!limit.count) return keep(box, [limit.limit], () => explain(limit.limit));
  const shadow = limit.mode === "shadow", over = shadow ? limit.count.would_refuse : limit.count.refused;
  const last = Math.floor(clock.now() / half) * half, first = last - (shownHalves - 1) * half;
  try {
    const [allowed, refused, top] = await Promise.all([
      points(limit.count.allowed, first),
      points(over, first),
      over ? ask("v1/top", [["prefix", over], ["window", span], ["limit", listed]]) : { top: [] },
    ]);
    const keys = top.top.filter(({ total }) => total > 0);
    keep(box, [limit.limit, shadow, last, allowed, refused, keys], () => [
      ...draw(last, { allowed, refused, verb: shadow ? "would be refused" : "refused" }),
      ...(keys.length > 0 ? [refusedMost(keys, over, limit)] : []),
    ]);
  } catch (error) {
    keep(box, [error.message], () => [el("p", { class: "note bad", role: "alert" }, sentence(error.message))]);
  }
  return undefined;
}

// Steps begin with the first, and so with half hours.
const points = async (prefix, first) => prefix
  ? (await ask("v1/series", [["prefix", prefix], ["from", first], ["step", step]])).points
  : [];

const sumOf = (list) => list.reduce((sum, [, n]) => sum + n, 0);

// draw stacks what was refused on what was allowed, up to the half hour that began last.
function draw(last, { allowed, refused, verb }) {
  const at = [allowed, refused].map((list) => new Map(list));
  const text = `${number(sumOf(allowed))} hits allowed, ${number(sumOf(refused))} ${verb}`;
  return [
    el("p", { class: "legend" }, el("b", { class: "allowed" }), ` ${compact(sumOf(allowed))} allowed `,
      el("b", { class: "refused" }), ` ${compact(sumOf(refused))} ${verb}`),
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
function refusedMost(keys, prefix, limit) {
  const row = ({ key, total }) => {
    const name = key.slice(prefix.length);
    const href = `?${new URLSearchParams({ key })}`;
    return el("li", {}, el("a", { href, "data-id": key }, el("bdi", {}, shown(name))),
      el("span", { class: "number", title: `${number(total)} hits of ${apart(name)}` }, compact(total)));
  };
  return el("div", {}, el("h3", {}, limit.mode === "shadow" ? "Most over the limit" : "Refused most"),
    el("ol", { class: "most" }, ...keys.map(row)));
}

function explain(name) {
  const count = '{allowed: "usage.{limit}.{key}", refused: "refused.{limit}.{key}"}';
  const file = `limits:\n  - name: ${name}\n    count: ${count}`;
  return [
    el("p", { class: "note" }, "No counters have its decisions. With count in the file of limits they do:"),
    snippet(file),
  ];
}
