// What was decided under a limit over the last day, from the counters of its decisions, and who is refused most.
import { el } from "./dom.js";
import { apart, atMinute, compact, number, sentence, shown } from "./format.js";
import { ask, clock } from "./api.js";

const span = "24h", step = "30m", half = 1_800_000, bars = 48, listed = 10;

// drawHistory fills a box with what the counters of a limit have, or with how to get counters.
export async function drawHistory(box, limit) {
  if (!limit.count) return explain(box, limit.limit);
  const shadow = limit.mode === "shadow", over = shadow ? limit.count.would_refuse : limit.count.refused;
  try {
    const [allowed, refused, top] = await Promise.all([
      points(limit.count.allowed),
      points(over),
      over ? ask("v1/top", [["prefix", over], ["window", span], ["limit", listed]]) : { top: [] },
    ]);
    draw(box, { allowed, refused, verb: shadow ? "would be refused" : "refused" });
    const keys = top.top.filter(({ total }) => total > 0);
    if (keys.length > 0) box.append(refusedMost(keys, over, limit));
  } catch (error) {
    box.replaceChildren(el("p", { class: "note bad", role: "alert" }, sentence(error.message)));
  }
  return undefined;
}

const points = async (prefix) => prefix
  ? (await ask("v1/series", [["prefix", prefix], ["window", span], ["step", step]])).points
  : [];

const sumOf = (list) => list.reduce((sum, [, n]) => sum + n, 0);

// draw stacks what was refused on what was allowed.
function draw(box, { allowed, refused, verb }) {
  const last = Math.floor(clock.now() / half) * half, at = [allowed, refused].map((list) => new Map(list));
  const all = Array.from({ length: bars }, (_, i) => last - (bars - 1 - i) * half)
    .map((t) => [t, at.map((list) => list.get(t) ?? 0)]);
  const most = Math.max(1, ...all.map(([, [a, b]]) => a + b));
  const text = `${number(sumOf(allowed))} hits allowed, ${number(sumOf(refused))} ${verb}`;
  const part = (n, name) => {
    const node = el("b", { class: name });
    node.style.height = `${n === 0 ? 0 : Math.max(3, (100 * n) / most)}%`;
    return node;
  };
  const title = ([t, [a, b]]) =>
    `${atMinute(t)} to ${atMinute(t + half)}: ${number(a)} allowed, ${number(b)} ${verb}`;
  box.replaceChildren(
    el("p", { class: "legend" }, el("b", { class: "allowed" }), ` ${compact(sumOf(allowed))} allowed `,
      el("b", { class: "refused" }), ` ${compact(sumOf(refused))} ${verb}`),
    el("div", { class: "stack", role: "img", "aria-label": `In the last 24 hours: ${text}` },
      ...all.map((bar) => el("i", { title: title(bar) }, part(bar[1][1], "refused"), part(bar[1][0], "allowed")))),
    el("p", { class: "ends note", "aria-hidden": "true" }, el("span", {}, atMinute(all[0][0])), el("span", {}, "now")),
  );
}

// refusedMost lists keys. Each leads to its hits over time, among the counters.
function refusedMost(keys, prefix, limit) {
  const row = ({ key, total }) => {
    const name = key.slice(prefix.length);
    return el("li", {}, el("a", { href: `?${new URLSearchParams({ key })}` }, el("bdi", {}, shown(name))),
      el("span", { class: "number", title: `${number(total)} hits of ${apart(name)}` }, compact(total)));
  };
  return el("div", {}, el("h3", {}, limit.mode === "shadow" ? "Most over the limit" : "Refused most"),
    el("ol", { class: "most" }, ...keys.map(row)));
}

function explain(box, name) {
  const count = '{allowed: "usage.{limit}.{key}", refused: "refused.{limit}.{key}"}';
  const file = `limits:\n  - name: ${name}\n    count: ${count}`;
  box.replaceChildren(
    el("p", { class: "note" }, "No counters have its decisions. With count in the file of limits they do:"),
    el("pre", {}, file),
  );
}
