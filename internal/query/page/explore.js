// The explorer: one table of counters, as a tree or a list, with their totals of the range, the change
// against the period before, and a drawing over time. This file asks, and decides which rows there are;
// rows.js draws them.
import { $, put, repeat, say, segments } from "./dom.js";
import { number, overflowOf, sentence, apart } from "./format.js";
import { clock } from "./api.js";
import { view, most, full, change, toggle, lineOf, onChange, suggest, counterLine, sumLine, sameLine } from "./view.js";
import { compares, halvesOf, since, spanOf, nameOf, windowOf } from "./range.js";
import { changeOver, describe, gapOf, withoutRoom } from "./figure.js";
import { grow, childrenOf, leafOf, none, ordered, hasParts, sum } from "./tree.js";
import { drawRows, drawTrend } from "./rows.js";
import { fallBack, subject } from "./summary.js";
import {
  largest, totalsOf, sumOf, totalsBefore, sumBefore, namesWith, seriesOf, mostListed, tableOf, whyNoSum,
} from "./counts.js";
import { menu, save } from "./menu.js";
import { isTooMuch } from "./series.js";
import { visitorsOf } from "./uniques.js";

const page = 50; // rows more on demand
const few = 10; // rows at first
const compared = 200; // of many counters, this many of the largest are ordered by their change
const atFirst = 3; // lines for a reader who has chosen none, and who cannot have the sum

let hooks, data; // what was answered last
let rows = few; // that may be shown
let before = {}, trends = { series: new Map() }; // kept longer than the totals, because they change little
const open = new Set(); // the nodes whose children are shown
const onlyRoots = new Set(); // those that were opened because there was no other, once
const live = new Map(); // the latest totals of the lines, by counter
export let visible = []; // the nodes that are shown
let listed = []; // and those that would be, if there were room

let reload = () => {};

// start begins to ask. hooks.answered hears each answer; hooks.empty is called while there are no counters at all.
export function start(given) {
  hooks = given;
  segments(
    $("shape"),
    "shape",
    [["tree", "Tree"], ["flat", "List"]],
    view.flat ? "flat" : "tree",
    (shape) => change({ flat: shape === "flat" }),
  );
  segments($("order"), "order", [["total", "Largest"], ["change", "Growing"]], view.sort, (sort) =>
    change({ sort, turned: false }));
  $("rows-menu").append(menu("Save the table", copies));
  $("more").addEventListener("click", () => {
    rows = rows === few ? page : rows + page;
    if (data && (data.whole || view.find) && !data.next) draw();
    else reload();
  });
  for (const button of document.querySelectorAll("#rows-table .sort")) {
    button.addEventListener("click", () => sort(button.dataset.sort));
  }
  onChange((parts) => {
    if (data && view.range !== data.range) live.clear();
    if (parts.range !== undefined || parts.find !== undefined || parts.flat !== undefined) rows = few;
    for (const key of live.keys()) if (lineOf(counterLine(key)) < 0) live.delete(key);
    for (const input of $("order").querySelectorAll("input")) input.checked = input.value === view.sort && !view.turned;
    for (const input of $("shape").querySelectorAll("input")) input.checked = (input.value === "flat") === view.flat;
    if (data?.question === question()) draw();
    else $("rows-table").setAttribute("aria-busy", "true");
    reload();
  });
  reload = repeat(load);
}

// sort orders by a column; again, the other way round.
function sort(column) {
  change(view.sort === column ? { turned: !view.turned } : { sort: column, turned: false });
}

const question = () => JSON.stringify([view.range, view.from, view.to, view.find]);
// beyond is true if there are more counters than one answer lists: then only the largest are known.
let beyond = false;

// load asks for all that the table shows, and returns after how many seconds to ask again.
async function load() {
  const asked = question(), span = spanOf(view);
  try {
    const found = await list(span);
    if (asked !== question()) return 0;
    data = { ...found, overflow: overflowsIn(found), span, range: view.range, question: asked };
    hooks.answered(data);
    const any = data.nodes.length > 0 || view.find !== "" || (await existing());
    hooks.reveal(any || view.chosen);
    if (any && !view.chosen && view.lines.length === 0) choose(await whyNoSum(windowOf(span).window));
    draw();
    if (data.stale) throw data.stale;
    if (!any) return 1;
    await compare(span);
    if (asked !== question()) return 0;
    await drawTrends(span);
  } catch (error) {
    hooks.failed(error);
    if (error.status === 400 || !data) put($("list-note"), sentence(error.message));
    return 3;
  }
  return pause(span);
}

// overflowsIn are the overflow counters in an answer, unless all hits are on their own counters.
const overflowsIn = ({ whole, nodes, others }) => (whole ? [] : [...nodes, ...others.values()])
  .map((one) => one?.now?.overflow ?? one?.overflow ?? one?.name ?? "")
  .filter((name) => overflowOf(name) !== undefined);

// pause is longer the more there was to read, and for a range that has ended.
function pause(span) {
  if (span.to) return 60;
  return Math.max(view.find ? 10 : 5, data.nodes.length / 20);
}

// list is the nodes that the table is made of. As long as all counters are known, a tree can be made of them.
async function list(span) {
  let answer;
  if (!beyond || !view.find) {
    const limit = beyond ? Math.min(mostListed, view.sort === "change" ? Math.max(compared, rows) : rows) : mostListed;
    answer = await largest(span, limit);
    if (!beyond && !answer.whole) {
      beyond = true;
      answer.top.length = Math.min(answer.top.length, Math.max(rows, view.sort === "change" ? compared : 0));
    }
    beyond = !answer.whole;
  }
  const about = {
    whole: !beyond,
    complete: answer?.complete,
    since: answer?.counting_since,
    asOf: answer ? Date.parse(answer.as_of) : undefined,
    floor: answer?.floor,
    stale: answer?.stale,
  };
  if (view.find || (beyond && view.sort === "name")) {
    const found = await namesWith(view.find.replace(/\*$/, ""), rows);
    const totals = beyond ? await totalsOf(found.names, span) : answer.totals;
    if (beyond) Object.assign(about, stateOf([...totals.values()]));
    return {
      ...about,
      next: found.more,
      nodes: found.names.map((name) => leafOf(name, totals.get(name) ?? nothingOf(answer))),
      others: await linesBeyond(span, totals),
    };
  }
  return {
    ...about,
    next: beyond && rows < mostListed,
    nodes: answer.top.map((t) => leafOf(t.key, answer.totals.get(t.key))),
    others: await linesBeyond(span, answer.totals),
  };
}

// nothingOf is the total of a counter that is not among all those with hits.
const nothingOf = (answer) => ({ ...none, upper: answer?.floor === null ? null : 0, complete: answer?.complete });

const stateOf = (totals) => ({
  complete: totals.every((t) => t.complete),
  since: totals.map((t) => t.counting_since ?? "").sort().at(-1),
  floor: totals.some((t) => t.upper === null) ? null : 0,
});

// linesBeyond are the totals of lines that the list does not have, by name.
async function linesBeyond(span, known) {
  const wanted = view.lines.filter(({ key }) => key !== undefined && !known.has(key)).map(({ key }) => key);
  if (!beyond) return new Map(); // they have no hits, or can be added up here
  const out = await totalsOf(wanted, span);
  for (const { name, prefix } of sums()) {
    out.set(name, await sumOf(prefix, span).catch((error) => {
      if (isTooMuch(error)) crowds.add(prefix);
    }));
  }
  return out;
}

// sums are the lines that are sums, except those that the service does not add up, because they are of too
// many counters.
const crowds = new Set();
const sums = () => view.lines.filter(({ prefix }) => prefix && !crowds.has(prefix));

// existing finds counters without hits in the range, if there are no others.
async function existing() {
  const { names } = await namesWith("", page);
  data.nodes = names.map((name) => leafOf(name, nothingOf(data)));
  return names.length > 0;
}

// choose shows the sum of all hits to a reader who has chosen no line, or the largest lines of the table.
function choose(whyNot) {
  const largestLines = () => ordered(roots(), "total", false).slice(0, atFirst).map(({ line }) => line);
  const lines = whyNot === "" ? [sumLine("")] : largestLines();
  if (lines.length > 0) suggest(lines);
}

const once = 60_000; // how long the period before, and drawings, are kept, at least

// compare asks for the period before, seldom, and shows the change.
async function compare(span) {
  const needed = data.nodes.map(({ name }) => name);
  const begun = Date.parse(data.since ?? "") || since;
  const halves = data.whole && !view.find ? halvesOf(span, begun, data.asOf) : undefined;
  const kept = halves ? 1000 * pause(span) : Math.max(once, data.nodes.length * 200);
  const fresh = before.question === question() && performance.now() - before.at < kept;
  if (!compares(view, span) || (fresh && (before.whole || needed.every((name) => before.totals.has(name))))) return;
  const [recent, earlier] = halves ? await Promise.all([largest(halves, mostListed), totalsBefore(halves)]) : [];
  if (recent?.whole && earlier) {
    before = { ...earlier, recent, length: halves.length, question: question(), at: performance.now() };
    draw();
    return;
  }
  const found = (data.whole && (await totalsBefore(span))) ||
    (await totalsBefore(
      span,
      [...new Set([...needed.slice(0, mostListed / 2), ...view.lines.flatMap(({ key }) => key ?? [])])],
    ));
  for (const { name, prefix } of found.whole ? [] : sums()) {
    found.totals.set(name, await sumBefore(prefix, span).catch(() => undefined));
  }
  before = { ...found, question: question(), at: performance.now() };
  draw();
}

// beforeOf is the total of the period before, if it is known.
function beforeOf(name) {
  if (!compares(view, data.span) || before.question !== question()) return undefined;
  return before.totals.get(name) ?? (before.whole ? { ...none, complete: before.complete } : undefined);
}

// leaves are the counters with what is known of them now. Of all counters, those are among them that have
// hits in the period before only.
function leaves() {
  const out = data.nodes.map((node) => ({
    ...node,
    now: nowOf(node.name, node.now),
    before: beforeOf(node.name),
    recent: recentOf(node.name),
  }));
  if (!data.whole || view.find || !compares(view, data.span) || before.question !== question() || !before.whole) {
    return out;
  }
  const known = new Set(out.map(({ name }) => name));
  for (const [key, total] of before.totals) {
    if (!known.has(key) && total.total > 0) out.push(leafOf(key, nothingOf(data), total, recentOf(key)));
  }
  return out;
}

// recentOf is the total to compare with the period before, if that is a part of the range.
function recentOf(name) {
  if (!before.recent || before.question !== question()) return undefined;
  return before.recent.totals.get(name) ?? { ...none, complete: before.recent.complete };
}

const nowOf = (key, listed) => live.get(key) ?? listed;

const asTree = () => data.whole && !view.flat && !view.find;

// roots are the nodes of the first level.
const roots = () => (asTree() ? grow(leaves()) : leaves());

// Rows stay where they are while the pointer is among them: so no click meets a row that was another one just now.
const ranks = new Map();
let order = "";
function inOrder(nodes) {
  const out = ordered(nodes, view.sort, view.turned);
  return ranks.size === 0
    ? out
    : out.sort((a, b) => (ranks.get(a.id) ?? Infinity) - (ranks.get(b.id) ?? Infinity) || 0);
}

// settle forgets the order if it may change, and remembers it if not.
function settle(all) {
  const now = JSON.stringify([data.question, view.sort, view.turned, view.flat, view.compare, before.question, rows]);
  const keep = order === now && $("rows").matches(":hover") && matchMedia("(hover: hover)").matches;
  order = now;
  ranks.clear();
  if (keep) all.forEach(({ id }, i) => ranks.set(id, i));
}

// judge compares a node with the period before. Where no worker counted, no hits are not 0: only those that
// carried a time of their own are known.
function judge(node) {
  const gap = missing(data.overflow.filter((name) => node.line.name.startsWith(overflowOf(name))));
  if (gap?.kind === "uncounted" && node.now?.total === 0) node.now = { ...node.now, uncounted: gap.long };
  node.change = node.now && changeOver(node.now, node.before, node.recent, before.length);
  node.words = node.now && describe(node.now, gap);
}

// flatten makes one list of the nodes and the children of those that are open.
function flatten(nodes, out = []) {
  nodes.forEach(judge);
  for (const node of inOrder(nodes)) {
    out.push(node);
    if (node.members && open.has(node.id)) flatten(childrenOf(node), out);
  }
  return out;
}

// pinned are nodes for the lines of the chart that the table does not show otherwise.
function pinned(shown) {
  const hidden = view.lines.filter((line) => line.prefix !== "" && !shown.some((node) => sameLine(node.line, line)));
  return hidden.map((line) => {
    const node = {
      ...leafOf(line.name, undefined),
      line,
      pinned: true,
      id: `line ${line.key ?? line.prefix} ${line.key === undefined}`,
    };
    const listed = data.nodes.find(({ name }) => name === line.key)?.now ??
      data.others.get(line.name) ??
      (data.whole ? nothingOf(data) : undefined);
    const here = line.key === undefined
      ? sumsHere(line)
      : { now: nowOf(line.key, listed), before: beforeOf(line.key), recent: recentOf(line.key) };
    Object.assign(node, here, {
      now: here.now ?? data.others.get(line.name),
      before: here.before ?? beforeOf(line.name),
    });
    judge(node);
    return node;
  });
}

// sumsHere adds up a line from the counters, if all are known.
function sumsHere({ prefix }) {
  if (!data.whole) return {};
  const of = leaves().filter(({ name }) => name.startsWith(prefix));
  const add = (part, complete) => (
    of.some((leaf) => !leaf[part]) ? undefined : { ...sum(of, (leaf) => leaf[part]), complete }
  );
  return {
    now: add("now", data.complete),
    ...(before.whole ? { before: add("before", before.complete), recent: before.recent && add("recent") } : {}),
  };
}

// summarize adds up what the table has, for a reader who cannot have the sum. Of more than can be listed, that of the
// largest is a lower bound.
function summarize() {
  const { prefix } = subject();
  if (prefix === undefined) return;
  const part = data.nodes.filter(({ name }) => name.startsWith(prefix)).reduce((n, { now }) => n + now.lower, 0);
  fallBack({
    now: { total: 0, lower: part, upper: null },
    ...sumsHere({ prefix }),
    length: before.length,
    gap: data.whole
      ? missing()
      : { short: `of the ${number(data.nodes.length)} largest`, long: "These are the largest counters together." },
  });
}

// draw shows what is known.
export function draw() {
  if (!data) return;
  $("rows-table").setAttribute("aria-busy", "false");
  settle(listed);
  const top = roots();
  if (top.length === 1 && asTree() && data.question === question() && !onlyRoots.has(top[0].id)) {
    open.add(top[0].id);
    onlyRoots.add(top[0].id);
  }
  const all = (listed = flatten(top)), some = all.slice(0, rows), pins = view.find ? [] : pinned(some);
  for (const node of [...pins, ...some]) node.visitors = visitorsOf(node.line.key);
  visible = [...pins, ...some];
  if (!view.find) summarize();
  const largest = Math.max(1, ...all.map(({ now }) => now.total));
  drawRows(visible, (node, last) => ({
    largest,
    line: lineOf(node.line),
    open: open.has(node.id),
    first: Boolean(last?.pinned) && !node.pinned,
  }));
  drawHeads(all);
  const more = all.length > rows || data.next, next = rows === few ? page - few : page;
  $("more").hidden = !more;
  put(
    $("more"),
    data.whole && !view.find && !data.next && all.length - rows <= next
      ? `Show all ${number(all.length)}`
      : `Show ${next} more`,
  );
  put($("list-note"), notes(all).join(" "));
  $("shape").hidden = !data.whole || !data.nodes.some(({ name }) => hasParts(name)) || view.find !== "";
  paint();
}

function drawHeads(all) {
  put($("explore-when"), nameOf(view));
  const table = $("rows-table");
  table.dataset.compare = compares(view, data.span) ? "yes" : "no";
  for (const button of table.querySelectorAll(".sort")) {
    const head = button.closest("th"), sorted = button.dataset.sort === view.sort;
    const up = (view.sort === "name") !== view.turned;
    if (sorted) head.setAttribute("aria-sort", up ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
  const gap = missing(data.overflow);
  const exact = all.length > 0 && all.every(({ now }) => now.lower === now.upper && !now.uncounted);
  put($("hits-note"), gap?.short ?? (exact ? "exact" : ""));
  table.dataset.exact = exact ? "yes" : "no";
  table.dataset.visitors = visible.some(({ visitors }) => visitors) ? "yes" : "no";
  table.dataset.tree = all.some(({ members }) => members) ? "yes" : "no";
  $("hits-note").dataset.kind = gap?.kind ?? "";
  $("hits-note").title = gap?.long ?? "";
}

// missing is what the totals of the range may lack. overflow is as for gapOf.
function missing(overflow) {
  const { complete, floor, since, span } = data;
  return gapOf({
    complete: complete !== false,
    upper: floor === null ? null : 0,
    counting_since: since,
    from: span.from,
    to: span.to ?? clock.now(),
    overflow,
  });
}

// notes are what the table cannot say by itself.
function notes(all) {
  const gap = missing(), crowded = withoutRoom(data.overflow), out = crowded ? [crowded.long] : [];
  if (view.find && all.length === 0) {
    out.push(`No counter’s name has “${apart(view.find)}” in it. Enter shows it all the same.`);
  }
  if (!view.find &&
    data.nodes.length > 0 &&
    data.nodes.every(({ now }) => now.total === 0) &&
    gap?.kind !== "uncounted") {
    out.push(`No hits ${nameOf(view)}.`);
  }
  if (!data.whole && !view.find) {
    const bound = data.floor > 0 && !data.next ? `, which have at most ${number(data.floor)} hits each` : "";
    if (view.sort !== "name") {
      const why = crowded ? "So there is no tree of counters" : "More counters than can be a tree";
      out.push(`${why}: these are the largest. Search finds all others${bound}.`);
    }
    if (view.sort === "change") {
      out.push(`Ordered by change among the ${number(Math.min(data.nodes.length, Math.max(compared, rows)))} largest.`);
    }
  }
  out.push(...visible.flatMap((node) => trends.series.get(trendOf(node))?.note ?? []).slice(0, 3));
  if (view.lines.length >= most) out.push(full);
  if (gap && gap.kind !== "young") out.push(gap.long);
  return out;
}

// drawTrends asks for the series of the rows that are shown, seldom.
async function drawTrends(span) {
  const wanted = seriesWanted(), same = JSON.stringify([question(), wanted]);
  const kept = Math.max(once, (data.whole ? data.nodes.length : page) * 300, span.to ? 600_000 : 0);
  if (trends.same === same && performance.now() - trends.at < kept) return;
  Object.assign(trends, { same, at: performance.now() });
  try {
    const series = await seriesOf(wanted.keys, wanted.parents, span);
    if (trends.same !== same) return;
    Object.assign(trends, { series, question: question(), span: { from: span.from, to: span.to ?? clock.now() } });
  } catch (error) {
    trends.same = undefined; // ask again
    if (isTooMuch(error) && !unsummed) {
      unsummed = true;
      return drawTrends(span);
    }
  }
  (unsummed ? draw : paint)(); // notes say what is not drawn
}

// unsummed is set if the service does not add up all groups of a level: then each is asked for alone.
let unsummed = false;

// seriesWanted is whose series are needed: of counters, and of the levels of the tree that have groups in view.
function seriesWanted() {
  const parents = new Map(), keys = [];
  for (const node of visible) {
    const { members, name, line, above, depth } = node;
    if (line.key !== undefined) keys.push(name);
    else if (members && unsummed) parents.set(trendOf(node), { sum: trendOf(node), prefix: line.prefix });
    else if (members) {
      const at = `${depth} ${above}`;
      if (!parents.has(at)) parents.set(at, { prefix: above, group: depth, limit: page });
      parents.get(at).limit++;
    }
  }
  return { keys, parents: [...parents.values()] };
}

function paint() {
  const { question: of, series, span } = trends;
  for (const node of visible) drawTrend(node.id, of === question() ? series.get(trendOf(node)) : undefined, span);
}

const trendOf = (node) => (node.members ? `${node.depth} ${node.group}` : `key ${node.name}`);

// expand shows or hides what a node is made of.
export function expand(node, wanted = !open.has(node.id)) {
  if (!node.members || wanted === open.has(node.id)) return;
  if (wanted) open.add(node.id);
  else open.delete(node.id);
  draw();
  if (wanted) drawTrends(data.span).catch(hooks.failed);
}

// pick puts a node into the chart, or takes it out.
export function pick(node) {
  if (!toggle(node.line)) {
    say(full);
    put($("list-note"), full);
    $("list-note").classList.add("told");
    return;
  }
  $("list-note").classList.remove("told");
}

// hear takes a total that has come by the live connection.
export function hear(total) {
  if (!data || total.window !== data.span.window || lineOf(counterLine(total.key)) < 0) return;
  live.set(total.key, total);
  soon();
}

let drawing; // totals come several at a time
function soon() {
  drawing ??= setTimeout(() => {
    drawing = undefined;
    draw();
  }, 100);
}

// keys are the counters of the rows that are shown.
export const keys = () => visible.flatMap(({ line }) => line.key ?? []);

// copies are what the menu of the table offers.
const copies = () => [
  ["Download CSV", async () => save("tallyroll-counters.csv", "text/csv", await tableOf(spanOf(view)))],
];

export { reload as refresh };
