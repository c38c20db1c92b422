// A rule of watch over the last day: a bar of its states, and a chart of its hits with the threshold.
import { $, el, put, svg } from "./dom.js";
import { ago, apart, atMinute, count, number, sentence, spoken } from "./format.js";
import { ask, clock } from "./api.js";
import { draw } from "./plot.js";
import { partsOf } from "./tree.js";
import { answersOf, lengthOf, pointsOf, requestsOf, stepsOf, usualStep } from "./series.js";

const minute = 60_000, hour = 60 * minute, day = 24 * hour;
const told = 5; // spells that the accessible name of a bar has, the newest

export const levels = { firing: "red", unknown: "amber", pending: "amber", resolved: "green", ok: "green" };

// timeline is the bar of a standing state. changes are those of its rule and key, the newest first; known is since
// when all of them are at hand.
export function timeline({ state, since }, changes, known, now) {
  const from = now - day;
  // A change without a state before is the first since the rule was there: until then, nothing is known.
  const kindOf = (c, i) => i === 0 || changes[i - 1].previous ? c.state : "";
  const cuts = changes.map((c, i) => [Date.parse(c.at), kindOf(c, i)]).reverse();
  const first = changes.at(-1);
  if (first) cuts.unshift([Math.max(from, known), first.previous ?? ""]);
  else cuts.push([Math.max(from, Date.parse(since)), state]);
  if (cuts[0][0] > from) cuts.unshift([from, ""]);
  const spells = cuts.map(([t, kind], i) => {
    const end = cuts[i + 1]?.[0] ?? now;
    // Of the state before the first change, it is unknown when it began.
    const when = first && cuts[i + 1]?.[0] === Date.parse(first.at) ? "before" : `from ${atMinute(t)} to`;
    const text = `${kind || "not known"} ${when} ${end === now ? "now" : atMinute(end)}`;
    const node = el("i", { title: text, class: kind, "data-state": levels[kind] ?? false });
    node.style.left = `min(${(100 * (t - from)) / day}%, 100% - 1px)`;
    node.style.width = `${Math.max(0, (100 * (end - t)) / day)}%`;
    return { kind, text, node };
  });
  const all = spells.filter(({ kind }) => kind), more = all.length - told;
  const label = all.slice(-told).map(({ text }) => text).join(", ") +
    (more > 0 ? `, and ${count(more, "spell")} before` : "");
  return el("div", { class: "timeline", role: "img", "aria-label": `The last day: ${label}` },
    ...spells.map(({ node }) => node));
}

// lineOf is the question about a rule's hits, or why it cannot be asked.
function lineOf({ key, of, condition, limit }) {
  if (key === "" && of !== "all") return "No chart: this state is about all keys of the rule. Choose one of its keys.";
  if (!condition) return "No chart: the rule has no condition here.";
  if (limit) return `No chart: the limit ${apart(limit)} says what is used now, and nothing what was used before.`;
  return of ? { prefix: key, group: of === "group" } : { key };
}

// seriesOf is the series of a line. A group of counters is one of those that the service finds with its name in front.
async function seriesOf(line, from, step) {
  if (!line.group) return [...(await answersOf(requestsOf([line], { from, to: null, step }))).values()][0];
  const { prefix } = line;
  const found = await ask("v1/series", { prefix, group: partsOf(prefix), from, step, limit: 1000 });
  const group = found.series.find(({ key }) => key === prefix);
  if (!group) throw new Error(`No chart: ${apart(prefix)} has no hits in this time, or is too small among its like`);
  return group;
}

// rolled are the sums of the points of each window that ends with a step, and the bounds of windows that end within
// the step: these cut two steps. They are comparable with a threshold.
function rolled(points, n) {
  let sum = 0;
  return points.map(([from, to, hits], i) => {
    const most = sum + hits;
    sum = most - (points[i - n]?.[2] ?? 0);
    return [from, to, sum, sum - hits, most];
  });
}

// planOf is how to ask: the longest time of a day or less over which a step divides the window, or why none does.
function planOf(about, { window, condition }, width) {
  const plain = (why) => ({ span: day, back: 0, why, step: usualStep(stepsOf(about, day, day), day) });
  if (!/^[0-9]/.test(window)) return plain(`${spoken(window)} begins again at 0, so steps are not comparable with it`);
  if (/^change/.test(condition)) return plain("the condition compares with the window before");
  const length = lengthOf(window);
  for (const span of [day, 6 * hour, hour, 10 * minute, minute - length]) {
    const step = stepsOf(about, span + length, span + length).find((text) =>
      length % lengthOf(text) === 0 && span / lengthOf(text) >= 4 && span / lengthOf(text) <= width / 3);
    if (step && span + length <= Math.max(...about.tiers.map((tier) => lengthOf(tier.window)))) {
      return { span, back: length, step };
    }
  }
  return plain(`no tier has steps that make up ${spoken(window)}`);
}

let about;

// drawRule fills the chart with the hits of a standing state.
export async function drawRule(s, isAsked) {
  const note = $("alert-note"), box = $("alert-plot"), line = lineOf(s);
  const fail = (text) => { box.replaceChildren(); box.hidden = true; put(note, text); };
  if (typeof line === "string") return fail(line);
  try {
    about ??= await ask("v1/about");
    box.hidden = false;
    const { span, back, why, step } = planOf(about, s, box.clientWidth), now = clock.now(), from = now - span;
    const answer = await seriesOf(line, from - back + minute, step);
    if (!isAsked()) return undefined;
    // The service may have widened the step to whole cells.
    const n = back / lengthOf(answer.step), fits = back === 0 || Number.isInteger(n);
    const all = pointsOf({ ...answer, bounds: undefined });
    const points = (back > 0 && fits ? rolled(all, n) : all).filter(([, end]) => end > from + minute);
    const [, at] = /^(?:above|below) (\d+)/.exec(s.condition) ?? [];
    const threshold = back > 0 && fits && at !== undefined ? Number(at) : undefined;
    const most = points.reduce((a, [, , hits, , top]) => Math.max(a, top ?? hits), 0);
    const what = back > 0 && fits ? `Hits in ${spoken(s.window)}` : `Hits in each ${spoken(answer.step)}`;
    const newest = number(points.at(-1)?.[2] ?? 0);
    const text = `${what}: ${newest} now, at most ${number(most)} in the last ${ago(span / 1000)}.`;
    const begun = Math.max(from, (answer.complete_from ?? Date.parse(answer.counting_since ?? "")) + back || from);
    const { root, y, right } = draw({
      lines: [{
        line: 0,
        name: s.key,
        points,
        open: Infinity,
        before: threshold === undefined ? [] : [[from, now, threshold]],
      }],
      shades: [{ from, to: Math.min(begun, now), label: "not all counted" }],
      from, to: now, log: false, apart: false, width: box.clientWidth, height: 200, zone: "",
    });
    if (threshold !== undefined) {
      const place = { x: right - 4, y: Math.max(12, y(0, threshold) - 6), "text-anchor": "end" };
      root.append(svg("text", place, s.condition));
    }
    box.setAttribute("aria-label", `${text} ${s.condition}`);
    box.replaceChildren(root);
    const missing = ` No threshold is shown: ${why ?? `no step of the answer makes up ${spoken(s.window)}`}.`;
    put(note, (answer.note ? `${answer.note} ` : "") + text + (threshold === undefined ? missing : ""));
  } catch (error) {
    fail(sentence(error.message));
  }
  return undefined;
}
