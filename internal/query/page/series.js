// Questions to /v1/series and their answers, as the lines of a chart.
import { ask, clock } from "./api.js";
import { longSteps, number, ofZone, seconds } from "./format.js";

// lengthOf is the length of a step in milliseconds.
export const lengthOf = (step) => 1000 * seconds(step);

// tierOf is the finest tier that holds a range whole. A tier holds a little more than its window.
export function tierOf(tiers, length, age) {
  const holds = ({ window }) => {
    const held = seconds(window) * 1000;
    return held >= length && held + Math.min(120_000, held * 0.03) >= age;
  };
  return tiers.find(holds) ?? tiers.at(-1);
}

const mostPoints = 3600; // the seconds of an hour
const easyPoints = () => (matchMedia("(max-width: 520px)").matches ? 60 : 80);
const fewestPoints = 4;

// stepsOf are the steps of a range that its tier has, and that draw neither a smear nor a few blocks.
export function stepsOf({ tiers, steps }, length, age) {
  const { cell } = tierOf(tiers, length, age);
  const whole = (step) => (longSteps.includes(step) ? seconds(cell) <= 86400 : seconds(step) % seconds(cell) === 0);
  const fewest = (step) => (step === "1y" ? 2 : fewestPoints);
  const out = [...steps, ...longSteps].filter((step) =>
    whole(step) && length / lengthOf(step) <= mostPoints && length / lengthOf(step) >= fewest(step));
  return out.length > 0 ? out : [cell];
}

// usualStep is the finest step whose points are read with ease. Over weeks, it divides no day.
export const usualStep = (steps, length, most = easyPoints()) =>
  steps.find((step) => length / lengthOf(step) <= most && (length < 14 * 86400_000 || lengthOf(step) >= 86400_000)) ??
    steps.at(-1);

// requestsOf are the questions about lines: one for all counters, one for each prefix. Days, weeks, months and
// years are those of a zone; other steps have none.
export function requestsOf(lines, { from, to, step, zone, uniques }) {
  const rest = [
    ["from", from],
    ...(to === null ? [] : [["to", to]]),
    ["step", step],
    ...(zone && ofZone(step) ? [["tz", zone]] : []),
    ...(uniques ? [["of", "uniques"]] : []),
  ];
  const counters = lines.filter(({ key }) => key !== undefined);
  return [
    ...(counters.length === 0
      ? []
      : [{ lines: counters, params: [...counters.map(({ key }) => ["key", key]), ...rest] }]),
    ...lines.filter(({ prefix }) => prefix !== undefined)
      .map((line) => ({ lines: [line], params: [["prefix", line.prefix], ...rest] })),
  ];
}

// isTooMuch reports that a sum may be of too many counters or cells.
export const isTooMuch = ({ status }) => status === 400 || status === 413;

// seriesOfSum asks for a prefix, which params begin with. Of too many counters it adds up the largest, with a note.
export async function seriesOfSum(params, asker = ask) {
  try {
    return await asker("v1/series", params);
  } catch (error) {
    const { prefix, from, to } = Object.fromEntries(params);
    if (!prefix || !isTooMuch(error)) throw error;
    const window = `${Math.ceil(((to ?? clock.now()) - from) / 1000)}s`;
    const { top, floor } = await ask("v1/top", { prefix, limit: 10, window, ...(to && { at: to }) });
    const keys = (top[0] ? top : [{ key: prefix }]).map(({ key }) => ["key", key]);
    const found = await ask("v1/series", [...keys, ...params.slice(1)]);
    const others = floor === null ? "unknown" : `at most ${number(floor)} hits each`;
    const note = `The ${top.length} largest of ${prefix}* are drawn. All others: ${others}.`;
    return { ...together(found.series ?? [found]), key: prefix, note };
  }
}

// together adds up the points of series with the same moments.
function together(list) {
  const add = (part, i, k) => list.reduce((n, one) => n + (one[part][i]?.[k] ?? 0), 0), [{ points, bounds }] = list;
  return {
    ...list[0],
    points: points.map(([t], i) => [t, add("points", i, 1)]),
    bounds: bounds?.map((_, i) => [add("bounds", i, 0), add("bounds", i, 1)]),
  };
}

// answersOf asks and returns for each line what was answered about it.
export async function answersOf(requests, asker = ask) {
  const answers = await Promise.all(requests.map(({ params }) => seriesOfSum(params, asker)));
  return new Map(
    answers.flatMap((answer, i) => (answer.series ?? [answer]).map((series, j) =>
      [requests[i].lines[j], { ...series, stale: answer.stale }])),
  );
}

// pointsOf are the points of an answer as [from, to, count], with [least, most] if they are not exact.
export function pointsOf({ points, bounds, step }) {
  return points.map(([t, n], i) => {
    const end = points[i + 1]?.[0] ?? t + lengthOf(step);
    return bounds ? [t, end, n, ...bounds[i]] : [t, end, n];
  });
}

// movedTo are the points of the period before, moved to this one: next to its own steps, at the height that they would
// have if they were as long as these. Days that are longer or shorter than others stand next to a day all the same.
export function movedTo(points, answer, step, shift) {
  const share = lengthOf(step) / lengthOf(answer.step), moments = points.map(([t]) => t);
  return pointsOf(answer).map(([a, b, n]) => {
    const from = a + shift, to = b + shift;
    const own = share === 1 ? moments.findIndex((t) => Math.abs(t - from) < lengthOf(step) / 2) : -1;
    return own < 0 ? [from, to, n * share] : [points[own][0], points[own][1], n];
  });
}
