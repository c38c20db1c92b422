// Questions about the totals and the series of many counters, in few requests.
import { ask, askOrLast, call, post, clock } from "./api.js";
import { ofZone, sentence } from "./format.js";
import { windowOf, windowBefore, stepOf, zoneName } from "./range.js";
import { seriesOfSum } from "./series.js";
import { sum } from "./tree.js";
import { linesIn } from "./view.js";

export const mostListed = 1000; // the most that /v1/top lists and, by default, that one request may name

const pairs = (object) => Object.entries(object);
const byKey = (totals, complete) => new Map(totals.map((t) => [t.key, { complete, ...t }]));

// largest are the counters with most hits. whole is true if no counter with hits is missing.
export async function largest(span, limit) {
  const answer = await askOrLast("v1/top", [...pairs(windowOf(span)), ["limit", limit]]);
  return {
    ...answer,
    totals: byKey(answer.top, answer.complete),
    whole: answer.top.length < limit && !(answer.floor > 0),
  };
}

// tableOf is a table of the largest counters as CSV.
export const tableOf = async (span) =>
  (await call("v1/top", [...pairs(windowOf(span)), ["limit", mostListed], ["format", "csv"]])).text();

// totalsOf are the totals of some counters.
export async function totalsOf(keys, span) {
  if (keys.length === 0) return new Map();
  const { window, ...at } = windowOf(span);
  return byKey((await post("v1/total", { keys, windows: [window], ...at })).totals);
}

// totalIn is the total of a line in a window: of a counter, of all counters that begin with a prefix, or of several
// of these together.
export async function totalIn(line, { window, ...at }, asker = ask) {
  const parts = linesIn(line), keys = parts.flatMap(({ key }) => (key === undefined ? [] : [["key", key]]));
  const asks = parts.flatMap(({ prefix }) => (prefix === undefined ? [] : [[["prefix", prefix]]]));
  if (keys.length > 0) asks.unshift(keys);
  const answers = await Promise.all(asks.map((of) => asker("v1/total", [...of, ["window", window], ...pairs(at)])));
  const totals = answers.flatMap((answer) => answer.totals);
  const asOf = Math.min(...answers.map((answer) => Date.parse(answer.as_of)));
  const found = { ...totals[0], asOf, stale: answers.find(({ stale }) => stale)?.stale };
  return totals.length === 1 ? found : {
    ...found,
    ...sum(totals, (total) => total),
    complete: totals.every(({ complete }) => complete),
    overflow: totals.flatMap(({ overflow }) => overflow ?? []),
    counting_since: totals.map((total) => total.counting_since ?? "").sort().at(-1),
  };
}

export const sumOf = (prefix, span) => totalIn({ prefix }, windowOf(span));
export const sumBefore = (prefix, span) => totalIn({ prefix }, windowBefore(span));

// whyNoSum returns why this reader cannot have the sum of all hits: a token may be about some counters only. It is
// empty if the reader can.
let answered;
export const whyNoSum = (window) => (answered ??= totalIn({ prefix: "" }, { window }).then(
  () => "",
  ({ status, message }) => {
    if (status === 403) return sentence(message);
    answered = undefined; // it is asked again
    return "";
  },
));

// totalsBefore are the totals of the period before: of all counters, or of some.
export async function totalsBefore(span, keys) {
  const { window, at } = windowBefore(span);
  if (!keys) {
    const { top, complete, floor } = await ask("v1/top", [["window", window], ["at", at], ["limit", mostListed]]);
    if (top.length < mostListed && !(floor > 0)) return { totals: byKey(top, complete), complete, whole: true };
    return undefined;
  }
  return {
    totals: keys.length === 0 ? new Map() : byKey((await post("v1/total", { keys, windows: [window], at })).totals),
    whole: false,
  };
}

// namesWith are counters whose names have a text in them: at least so many, if there are. A page of the
// service's may be short although there is a next one.
export async function namesWith(text, limit) {
  const names = [];
  let after = "";
  for (let page = 0; page < 5 && names.length < limit; page++) {
    const answer = await ask(
      "v1/counters",
      [...(text ? [["match", text]] : []), ["limit", limit], ...(after ? [["after", after]] : [])],
    );
    names.push(...answer.counters);
    after = answer.next;
    if (!after) break;
  }
  return { names, more: Boolean(after) };
}

const longestAddress = 6000; // bytes, which every proxy lets pass

async function seriesOfKeys(keys, span) {
  const chunks = [[]];
  let length = 0;
  for (const key of keys) {
    const more = encodeURIComponent(key).length + 5;
    if (length + more > longestAddress) {
      chunks.push([]);
      length = 0;
    }
    length += more;
    chunks.at(-1).push(["key", key]);
  }
  const answers = await Promise.all(
    chunks.filter((chunk) => chunk.length > 0).map((chunk) => ask("v1/series", [...chunk, ...rangeOf(span)])),
  );
  return answers.flatMap((answer) => answer.series ?? [answer]);
}

// rangeOf is a little less than a window, so that the tier of its length still reaches back to its beginning.
function rangeOf(span) {
  const step = stepOf(span);
  const from = span.window ? span.from + Math.max(5000, (clock.now() - span.from) / 1000) : span.from;
  return [
    ["from", Math.ceil(from / 1000) * 1000],
    ...(span.to ? [["to", span.to]] : []),
    ["step", step],
    ...(zoneName && ofZone(step) ? [["tz", zoneName]] : []),
  ];
}

// seriesOf are the series of counters, by name, and of groups of counters, by the name of the group: parents are the
// levels of a tree, {prefix, group, limit}, or single groups, {prefix, sum: what the answer is called}.
export async function seriesOf(keys, parents, span) {
  const groups = parents.map(({ prefix, group, limit, sum }) => sum
    ? seriesOfSum([["prefix", prefix], ...rangeOf(span)])
    : ask(
      "v1/series",
      [["prefix", prefix], ["group", group], ["limit", Math.min(limit, mostListed)], ...rangeOf(span)],
    ));
  const [counters, ...levels] = await Promise.all([keys.length > 0 ? seriesOfKeys(keys, span) : [], ...groups]);
  const out = new Map(counters.map((series) => [`key ${series.key}`, series]));
  levels.forEach((level, i) =>
    (level.series ?? [level]).forEach((line) => out.set(parents[i].sum ?? `${parents[i].group} ${line.key}`, line)));
  return out;
}
