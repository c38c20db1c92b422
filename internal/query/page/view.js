// What the reader can choose here, and what the reader has chosen. The choice lives in the address, so that a view
// can be shared.
import { seconds, spoken, apart } from "./format.js";

export const most = 7; // as many lines as can be told apart
// calendarZone is what makes steps the reader's own days; other steps have none.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";
export const calendarZone = (step) => ((step === "1d" || step === "1w") && /^[A-Z]/.test(zone) ? [["tz", zone]] : []);

// What the service has told of itself: offer fills them in.
export let windows = []; // of the totals, and how far back the chart goes
export let topWindows = [];
let tiers = [], allSteps = [];

const listeners = [];
export const view = { keys: [], waiting: [], range: "", step: "", top: "", chosen: false, unmet: [] };

// wanted are the windows that tell most, in the order in which they do; fillers stand in for those that no tier holds.
const wanted = ["1h", "24h", "1m", "7d", "30d", "365d", "90d"], fillers = ["6h", "15m", "5m"];

// choose takes at most so many of the windows that the service offers, and fills up with others to have at least few.
function choose(offered, few, many) {
  const out = wanted.filter((w) => offered.includes(w)).slice(0, many);
  for (const w of [offered.at(-1), ...fillers, ...offered]) {
    if (out.length < few && offered.includes(w) && !out.includes(w)) out.push(w);
  }
  return out.sort((a, b) => seconds(a) - seconds(b));
}

// offer takes what /v1/about answers.
export function offer(about) {
  tiers = about.tiers;
  allSteps = about.steps;
  windows = choose(about.windows, 5, 6);
  topWindows = choose(about.windows, 4, 4);
}

export const usual = (list) => (list.includes("1h") ? "1h" : list.at(-1));

const mostPoints = 3600; // the seconds of an hour
const easyPoints = 168; // the hours of a week
const fewestPoints = 4;

// stepsOf are the steps of a range that its tier has, and that draw neither a smear nor a few dots.
export function stepsOf(range) {
  const length = seconds(range);
  const { cell } = tiers.find((t) => seconds(t.window) >= length) ?? tiers.at(-1);
  const points = (step) => length / seconds(step);
  const out = allSteps.filter((s) => seconds(s) % seconds(cell) === 0 && points(s) <= mostPoints && points(s) >= fewestPoints);
  return out.length > 0 ? out : [cell];
}

// usualStep is the finest step whose points are read with ease.
export function usualStep(range) {
  const steps = stepsOf(range);
  return steps.find((s) => seconds(range) / seconds(s) <= easyPoints) ?? steps.at(-1);
}

const duration = /^[1-9]\d{0,5}[smhdw]$/;

// readAddress takes the choice from the address. view.unmet says what of it cannot be had here.
export function readAddress() {
  const params = new URLSearchParams(location.search);
  const keys = [...new Set(params.getAll("key").filter((key) => key !== ""))];
  view.keys = keys.slice(0, most);
  view.waiting = keys.slice(most);
  view.chosen = params.has("key") || params.has("none");
  view.unmet = [];
  const read = (name, choices, byDefault, what) => {
    const given = params.get(name);
    if (given === null) return byDefault;
    const choice = choices.find((c) => c === given || (duration.test(given) && seconds(c) === seconds(given)));
    if (choice === undefined) view.unmet.push(`The address asks for ${what(duration.test(given) ? spoken(given) : `“${apart(given.slice(0, 20))}”`)}, which the page does not offer here: it shows ${spoken(byDefault)}.`);
    return choice ?? byDefault;
  };
  view.range = read("range", windows, usual(windows), (text) => `a chart of ${text}`);
  view.step = usualStep(view.range);
  if (view.unmet.length === 0) view.step = read("step", stepsOf(view.range), view.step, (text) => `a chart per ${text}`);
  view.top = read("top", topWindows, usual(topWindows), (text) => `the trends of ${text}`);
}

function writeAddress() {
  const params = new URLSearchParams();
  for (const key of [...view.keys, ...view.waiting]) params.append("key", key);
  if (view.chosen && view.keys.length === 0) params.set("none", "");
  if (view.range !== usual(windows)) params.set("range", view.range);
  if (view.step !== usualStep(view.range)) params.set("step", view.step);
  if (view.top !== usual(topWindows)) params.set("top", view.top);
  const query = params.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

// change sets parts of the view and tells those who show them.
export function change(parts, byReader = true) {
  Object.assign(view, parts);
  if (byReader) {
    if (parts.keys) view.chosen = true;
    view.unmet = [];
    writeAddress();
  }
  for (const tell of listeners) tell(parts);
}

export const onChange = (tell) => listeners.push(tell);

export const full = `${most} counters are as many as can be told apart: remove one to add another.`;

export function add(key) {
  if (view.keys.includes(key) || view.keys.length >= most) return false;
  change({ keys: [...view.keys, key] });
  return true;
}

// remove makes room, which a counter takes that waits for it.
export function remove(key) {
  const [next, ...waiting] = view.waiting;
  const keys = view.keys.filter((other) => other !== key);
  change({ keys: next === undefined ? keys : [...keys, next], waiting });
}
