// What the reader has chosen. The choice lives in the address, so that a view can be shared, and so that Back
// undoes it.
import { seconds, short, spoken, apart, longSteps } from "./format.js";
import { ranges, usual, rolling, zoned } from "./range.js";

export const most = 7; // as many lines as can be told apart

// A line of the chart is a counter, or the sum of all whose names begin with the same text.
export const counterLine = (key) => ({ name: key, key });
// If that text is empty, it is the sum of all hits.
export const sumLine = (prefix) => ({ name: prefix === "" ? "All hits" : `${prefix}*`, prefix });
// linesIn are the lines that a subject adds up: it is one, or has several as parts.
export const linesIn = (subject) => subject.parts ?? [subject];
export const sameLine = (a, b) => a.key === b.key && a.prefix === b.prefix;

const byDefault = { compare: true, sort: "total", turned: false, flat: false, find: "", of: "hits", from: 0, to: 0 };

// view.chosen is false while the page itself has chosen the lines. view.unmet has what of the address is not possible.
export const view = { ...byDefault, lines: [], waiting: [], range: "", step: "", chosen: false, unmet: [] };

const sorts = ["total", "change", "name"];
const subjects = ["hits", "uniques", "rate"]; // of the chart
let home = []; // the lines of a reader who has chosen none
const own = ["key", "prefix", "range", "from", "to", "compare", "sort", "list", "find", "step", "of", "top"];
const duration = /^[1-9]\d{0,5}[smhdw]$/;
const listeners = [];

// readAddress takes the choice from the address.
export function readAddress() {
  const params = new URLSearchParams(location.search);
  const lines = [];
  for (const [name, value] of params) {
    const line = name === "prefix" ? sumLine(value) : name === "key" && value !== "" ? counterLine(value) : undefined;
    if (line && !lines.some((other) => sameLine(line, other))) lines.push(line);
  }
  Object.assign(view, byDefault, {
    lines: lines.length > 0 ? lines.slice(0, most) : home, waiting: lines.slice(most), unmet: [],
    chosen: lines.length > 0,
    compare: params.get("compare") !== "0", flat: params.get("list") === "flat", find: params.get("find") ?? "",
    of: subjects.includes(params.get("of")) ? params.get("of") : "hits",
    step: duration.test(params.get("step") ?? "") || longSteps.includes(params.get("step")) ? params.get("step") : "",
  });
  const sort = (params.get("sort") ?? "").replace(/^-/, "");
  if (sorts.includes(sort)) Object.assign(view, { sort, turned: params.get("sort").startsWith("-") });
  readRange(params);
}

function readRange(params) {
  const given = params.get("range");
  const [from, to] = ["from", "to"].map((name) => Date.parse(params.get(name) ?? "") || 0);
  view.range = usual;
  if (given === "custom" && from > 0 && (to === 0 || from < to)) {
    return Object.assign(view, { range: "custom", from, to });
  }
  if (given === null || given === "custom") return undefined;
  const known = ranges.find((r) => r === given) ??
    rolling.find((r) => duration.test(given) && seconds(r) === seconds(given));
  if (known) return (view.range = known);
  const what = duration.test(given) ? spoken(given) : `“${apart(given.slice(0, 20))}”`;
  view.unmet = [
    `The address asks for ${what}, which the page does not offer here: it shows ${zoned[usual] ?? spoken(usual)}.`,
  ];
  return undefined;
}

function address() {
  const given = new URLSearchParams(location.search), out = new URLSearchParams();
  for (const { key, prefix } of [...view.lines, ...view.waiting]) {
    out.append(key === undefined ? "prefix" : "key", key ?? prefix);
  }
  if (!view.chosen) for (const name of ["key", "prefix"]) out.delete(name);
  if (view.range !== usual) out.set("range", view.range);
  if (view.range === "custom") {
    out.set("from", new Date(view.from).toISOString());
    if (view.to) out.set("to", new Date(view.to).toISOString());
  }
  if (!view.compare) out.set("compare", "0");
  if (view.sort !== "total" || view.turned) out.set("sort", `${view.turned ? "-" : ""}${view.sort}`);
  if (view.flat) out.set("list", "flat");
  if (view.find) out.set("find", view.find);
  if (view.step) out.set("step", view.step);
  if (view.of !== "hits") out.set("of", view.of);
  for (const [name, value] of given) if (!own.includes(name)) out.append(name, value); // those are for other views
  const query = out.toString();
  return query ? `?${query}` : location.pathname;
}

const tell = (parts) => {
  entitle();
  for (const listener of listeners) listener(parts);
};

// entitle names what the page is about, for tabs, bookmarks and the list of Back. Other views have titles of their own.
function entitle() {
  if (new URLSearchParams(location.search).has("view")) return;
  const lines = view.chosen ? view.lines : [];
  const names = lines.slice(0, 2).map(({ name }) => short(name));
  if (lines.length > 2) names.push(`${lines.length - 2} more`);
  document.title = names.length === 0 ? "Tallyroll" : `${names.join(", ")} · Tallyroll`;
}

// change sets parts of the view and notifies those who show them. What the reader chooses is a step that Back
// undoes, but not each letter of a search.
export function change(parts) {
  if (parts.range && view.of === "rate") parts.of = "hits"; // which is about the last minute only
  if ((parts.range && parts.range !== view.range) || (parts.of && parts.of !== view.of)) view.step = "";
  const typed = Object.keys(parts).every((name) => name === "find");
  Object.assign(view, parts, { unmet: [] });
  if (parts.lines) view.chosen = parts.lines.length > 0;
  if (view.lines.length === 0) view.lines = home;
  const now = address();
  if (now !== location.search) history[typed ? "replaceState" : "pushState"](null, "", now);
  tell(parts);
}

// suggest shows lines to a reader who has chosen none.
export function suggest(lines) {
  view.lines = home = lines;
  tell({ lines });
}

export const onChange = (listener) => listeners.push(listener);

export function start() {
  readAddress();
  entitle();
  addEventListener("popstate", () => {
    readAddress();
    tell({ ...view });
  });
}

export const full = `The chart shows ${most} lines, as many as can be distinguished: take one out to add another.`;

export const lineOf = (wanted) => view.lines.findIndex((line) => sameLine(line, wanted));

// toggle adds a line to the chart, or takes it out, which makes room for one that waits. It reports false if
// there is no room. The sum that the page itself shows makes way, because it would flatten every other line.
export function toggle(wanted) {
  if (lineOf(wanted) >= 0) {
    const [next, ...waiting] = view.waiting;
    const lines = view.lines.filter((line) => !sameLine(line, wanted));
    change({ lines: next ? [...lines, next] : lines, waiting });
    return true;
  }
  const others = view.chosen ? view.lines : view.lines.filter(({ prefix }) => prefix !== "");
  if (others.length >= most) return false;
  change({ lines: [...others, wanted] });
  return true;
}
