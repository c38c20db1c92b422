// The chart: it asks for lines, has them drawn, reads them by pointer and keyboard, and hands them out in other
// forms. It does not depend on where the question comes from.
import { $, el, svg, put, repeat, segments } from "./dom.js";
import { apart, number, roughly, sentence, short, shown, spoken } from "./format.js";
import { askOrLast, clock } from "./api.js";
import { clocksOf } from "./axis.js";
import { draw as plot } from "./plot.js";
import { answersOf, lengthOf, movedTo, pointsOf, requestsOf, stepsOf, tierOf, usualStep } from "./series.js";
import { beyondChance } from "./figure.js";
import { midnight } from "./range.js";
import { copy, menu, save } from "./menu.js";

const lateAfter = 5000; // milliseconds; from here on answers have no upper bound
const flat = 50; // a line that has this many times fewer hits than another cannot be seen with it
const draggedPixels = 6; // less is a click

let hooks, about;
let question = { lines: [], of: "hits" };
let seen; // what the service has answered, as lines, and what was asked
let drawn, scale = "linear", isolated = "", ownStep = "", zooms = 0, moving = false, reload = () => {};
let pointed = -1, at = -1, moment = 0, byKey = false, dragFrom; // what is read, and where a drag began

// start takes the answer of /v1/about, and what the page does at a zoom, on the way back, and for a step.
export function start(given) {
  ({ about, ...hooks } = given);
  segments($("of"), "of", [["hits", "Hits"], ["uniques", "Uniques"]], question.of, hooks.of);
  segments($("scales"), "scale", [["linear", "Linear"], ["log", "Log"], ["apart", "Split"]], scale, show);
  $("scales").lastElementChild.hidden = true;
  $("step").addEventListener("change", () => {
    ownStep = $("step").value;
    hooks.step(ownStep);
    reload();
  });
  $("chart-back").addEventListener("click", back);
  $("chart-menu").append(menu("Save or copy the chart", items));
  const box = $("plot");
  box.addEventListener("pointerdown", press);
  box.addEventListener("pointermove", hover);
  box.addEventListener("pointerup", release);
  box.addEventListener("pointercancel", endDrag);
  box.addEventListener("pointerleave", () => {
    point(-1);
    if (!byKey && dragFrom === undefined) read(-1);
  });
  box.addEventListener("dblclick", back);
  box.addEventListener("blur", () => read(-1));
  box.addEventListener("focus", () => { if (box.matches(":focus-visible")) read(moments().length - 1, true); });
  box.addEventListener("keydown", onKey);
  let width = 0;
  new ResizeObserver(() => {
    if (width === box.clientWidth) return; // the drawing makes its own height
    width = box.clientWidth;
    redraw();
  }).observe(box);
  reload = repeat(load);
}

// draw shows the answer to a question: {lines, window, from, to, step, zone, before, of}. A line has a name, and a
// key or a prefix. of is "hits", "rate" for those of each second, or "uniques" for unique values. before may be the
// milliseconds by which the period before is earlier, else it is as long as the range.
export function draw(asked) {
  if (asked.window !== question.window || asked.from !== question.from || asked.to !== question.to) {
    ownStep = "";
    if (!moving) zooms = 0; // the reader has chosen another range
  }
  if ((asked.of ?? "hits") !== question.of) {
    [ownStep, seen] = ["", undefined];
    read(-1);
  }
  question = { ...asked, of: asked.of ?? "hits" };
  const shown = question.of === "uniques" ? "uniques" : "hits";
  for (const input of $("of").querySelectorAll("input")) input.checked = input.value === shown;
  if (seen && !sameLines(seen.asked.lines, asked.lines)) {
    [seen, isolated] = [undefined, asked.lines.some(({ name }) => name === isolated) ? isolated : ""];
  }
  label();
  reload();
}

const sameLines = (a, b) => a.length === b.length &&
  a.every(({ key, prefix }, i) => key === b[i].key && prefix === b[i].prefix);

// rangeOf is what to ask about. It begins a little later than the window, so that the tier of this length still
// reaches back to its beginning.
function rangeOf({ window, from, to }) {
  const now = clock.now(), length = window ? lengthOf(window) : (to ?? now) - from;
  return {
    from: window ? now - length + Math.max(5000, length / 1000) : from,
    to: window ? null : to,
    length,
    age: window ? length : now - from,
  };
}

// load asks for the lines and returns after how many seconds to ask again.
async function load() {
  const asked = question, { from, to, length, age } = rangeOf(asked);
  if (length > 0) drawAxes(from, to ?? clock.now(), asked.zone); // else nothing is asked yet
  if (asked.lines.length === 0) return 3600;
  const live = to === null || to > clock.now() - 10_000;
  const pause = !live ? 60 : length <= 60_000 ? 1 : length <= 3600_000 ? 3 : length <= 86400_000 ? 15 : 60;
  try {
    const uniques = asked.of === "uniques" && about.features.uniques;
    const asks = asked.lines.filter(({ key }) => !uniques || key !== undefined);
    showWhat(uniques);
    if (asks.length === 0) return nothingOf(asked);
    const steps = stepsOf(uniques ? { ...about, tiers: about.unique_tiers } : about, length, age);
    const wanted = asked.step || (steps.includes(ownStep) ? ownStep : usualStep(steps, length));
    showSteps(steps, wanted);
    // A part of a day would be a bar more than the window has days.
    const begin = asked.window && wanted === "1d" && length >= 4 * 86400_000 ? midnight(from, 1) : from;
    const requests = requestsOf(asks, { from: begin, to, step: wanted, zone: asked.zone, uniques });
    const answers = await answersOf(requests, askOrLast), { stale } = answers.get(asks[0]);
    if (asked !== question || wanted !== $("step").value) return 0;
    const all = asks.map((line) => lineOf(line, asked.lines.indexOf(line), answers.get(line)));
    const { step } = answers.get(asks[0]);
    const now = {
      asked,
      requests,
      uniques,
      wanted,
      step,
      length,
      all,
      begin,
      from: Math.min(begin, ...all.flatMap(({ points }) => points.slice(0, 1).map(([t]) => t))),
      to: Math.max(...all.map(({ points }) => points.at(-1)?.[1] ?? to ?? clock.now())),
    };
    const few = asks.flatMap((line) => answers.get(line).note ?? []).join(" ");
    now.note = uniques ? notesOn(asked.lines.length - asks.length) : few || (stale ? "" : await addBefore(now));
    if (asked !== question) return 0;
    seen = now;
    redraw();
    if (stale) return 3;
  } catch (error) {
    if (!seen || error.status === 400) put($("chart-note"), sentence(error.message));
    return 3;
  }
  return pause;
}

function showWhat(uniques) {
  put(
    $("chart-title"),
    uniques ? "Unique values over time" : question.of === "rate" ? "Hits per second, just now" : "Hits over time",
  );
}

// nothingOf returns why the chart has no line.
function nothingOf(asked) {
  $("plot").querySelector(".drawing")?.remove();
  [seen, drawn] = [undefined, undefined];
  put($("chart-note"), notesOn(asked.lines.length));
  return 60;
}

// notesOn returns notes about uniques, which are no sums.
const notesOn = (sums) => [
  "A visitor who comes in several steps counts once in each: their numbers cannot be added up.",
  ...(sums === 0 ? [] : ["Sums over names are not shown, because the same one can be in many counters."]),
].join(" ");

function lineOf(line, index, answer) {
  const points = pointsOf(answer);
  return {
    ...line,
    line: index,
    points,
    before: [],
    open: answer.unfinished_from ?? Infinity,
    completeFrom: answer.complete_from ?? 0,
    complete: answer.complete, asOf: Date.parse(answer.as_of), since: Date.parse(answer.counting_since ?? "") || 0,
  };
}

// addBefore adds the period before to all lines. It asks again only if that has moved on by a step. It returns a
// note.
let had = { asked: "" };
async function addBefore(now) {
  const { asked, step, all } = now;
  if (!asked.before) return "";
  const length = asked.window ? now.length : now.to - now.from;
  const earlier = typeof asked.before === "number" ? asked.before : length;
  // days may have other lengths
  const shift = lengthOf(step) < 86400_000 ? Math.round(earlier / lengthOf(step)) * lengthOf(step) : earlier;
  // The last step may end in the future, and so may that before it, if a step is longer than the range.
  const from = now.from - shift, to = Math.min(now.to - shift, clock.now() - 1000);
  const requests = requestsOf(asked.lines, { from, to, step, zone: asked.zone });
  const text = JSON.stringify(requests.map(({ params }) => params));
  if (had.asked !== text) {
    const answers = await answersOf(requests);
    had = { asked: text, answers: asked.lines.map((line) => answers.get(line)) };
  }
  if (had.answers.every(({ points }) => points.length === 0)) return "The period before was not counted.";
  all.forEach((line, i) => {
    line.before = movedTo(line.points, had.answers[i], step, shift).filter(([a, b]) => b > now.from && a < now.to);
  });
  const other = had.answers[0].step;
  return [
    `${all.length > 1 ? "Point at a line to see, dashed," : "Dashed:"} the period before, ` +
      `${roughly(shift / 1000)} earlier` +
      `${other === step ? "" : `, as the mean of each ${spoken(other)}`}.`,
    ...(had.answers.some(({ complete }) => !complete) ? ["Not all of it was counted."] : []),
  ].join(" ");
}

function showSteps(steps, wanted) {
  const all = steps.includes(wanted) ? steps : [...steps, wanted].sort((a, b) => lengthOf(a) - lengthOf(b));
  const list = all.join();
  if ($("step").dataset.steps !== list) {
    $("step").replaceChildren(...all.map((step) => el("option", { value: step }, spoken(step))));
  }
  $("step").dataset.steps = list;
  $("step").value = wanted;
}

const lines = () => seen?.all.filter(({ name }) => isolated === "" || name === isolated) ?? [];
const moments = () => lines()[0]?.points.map(([t]) => t) ?? [];

// show changes how lines stand to each other.
function show(kind) {
  scale = kind;
  document.querySelector(`#scales input[value="${kind}"]`).checked = true;
  redraw();
}

function isolate(name) {
  isolated = isolated === name ? "" : name;
  redraw();
}

const heightOf = (width) => (width < 480 ? 210 : 270);

// drawAxes shows where points will stand, until they come.
function drawAxes(from, to, zone) {
  const box = $("plot"), width = box.clientWidth;
  if (width === 0 || box.querySelector(".drawing")) return;
  box.prepend(plot({ lines: [], from, to, shades: [], width, height: heightOf(width), zone }).root);
}

function redraw() {
  const box = $("plot"), width = box.clientWidth, here = lines();
  if (here.length === 0 || width === 0) return;
  const shades = shadesOf(here);
  const marked = here.length === 1 && !seen.uniques ? marksOf(here[0]) : undefined;
  box.querySelector(".drawing")?.remove();
  drawn = plot({
    lines: here,
    marked,
    from: seen.from,
    to: seen.to,
    shades,
    log: scale === "log",
    apart: scale === "apart" && here.length > 1,
    width,
    height: heightOf(width),
    zone: seen.asked.zone,
  });
  drawn.shades = shades;
  drawn.root.classList.toggle("many", here.length > 1 && scale !== "apart");
  point(pointed);
  box.prepend(drawn.root);
  box.dataset.points = moments().length;
  box.dataset.step = seen.step;
  [box.dataset.from, box.dataset.to] = [seen.from, seen.to];
  $("scales").lastElementChild.hidden = here.length < 2;
  $("chart-back").hidden = zooms === 0;
  label();
  showHint(here);
  showNote(here, shades, marked);
  hooks.seen(seen);
  box.setAttribute("aria-valuemax", Math.max(0, moments().length - 1));
  if (at >= 0) read(indexAt(moment), byKey);
  else box.setAttribute("aria-valuetext", summary());
}

// marksOf are the steps of a line that chance alone does not explain, with 1 for more hits and -1 for fewer: together
// with those of the same step of the period before, which may be longer, they differ from it; or from the mean of all,
// if not all of that is known. If most steps do, none is an outlier.
function marksOf({ points, before, open, completeFrom }) {
  const whole = points.filter(([t]) => t >= completeFrom && t < open);
  if (whole.length === 0) return undefined;
  const mean = whole.reduce((sum, [, , n]) => sum + n, 0) / whole.length;
  let next = 0;
  const groups = before.map(([a, b, n]) => {
    const steps = [];
    while (next < whole.length && whole[next][0] < b) {
      if (whole[next][0] >= a) steps.push(whole[next]);
      next++;
    }
    return { steps, usual: n };
  });
  const compared = groups.reduce((sum, { steps }) => sum + steps.length, 0) === whole.length;
  const far = (compared ? groups : whole.map((point) => ({ steps: [point], usual: mean })))
    .map(({ steps, usual }) => [steps, steps.reduce((sum, [, , n]) => sum + n, 0), usual * steps.length])
    .filter(([, n, usual]) => beyondChance(n, usual))
    .flatMap(([steps, n, usual]) => steps.map(([t]) => [t, Math.sign(n - usual)]));
  const most = far.length * 2 > whole.length;
  return { steps: new Map(most ? [] : far), most, than: compared ? "the period before" : "the mean" };
}

// label writes the names of the lines below the chart, with their visitors.
export function label() {
  const legend = $("legend"), all = seen?.all ?? question.lines.map((one, line) => ({ ...one, line }));
  const names = all.length < 2 ? [] : all.map(({ name }) => name);
  if (legend.dataset.names !== JSON.stringify(names)) { // else a button that has the focus would lose it
    legend.replaceChildren(...all.slice(0, names.length).map(({ name, line }) => el("li", { "data-line": line },
      el(
        "button",
        {
          type: "button",
          onclick: () => isolate(name),
          onpointerenter: () => point(line),
          onpointerleave: () => point(-1),
          onfocus: () => point(line),
          onblur: () => point(-1),
        },
        el("span", { class: "swatch", "aria-hidden": "true" }),
        el("bdi", {}, shown(name)),
        el("span", { class: "estimate" }),
      ))));
    legend.dataset.names = JSON.stringify(names);
  }
  names.forEach((name, i) => {
    const button = legend.children[i].firstChild, visitors = hooks.visitors(all[i].key);
    button.setAttribute("aria-pressed", String(name === isolated));
    button.title = visitors?.title ?? "Show this line alone, or all again";
    put(button.lastChild, visitors ? `${visitors.text} visitors` : "");
  });
  legend.classList.toggle("one", isolated !== "");
}

// showHint offers another scale if some lines, or most of one, cannot be seen with the largest counts.
function showHint(here) {
  const tops = here.map(({ name, points }) => ({ name, most: points.reduce((most, [, , n]) => Math.max(most, n), 0) }))
    .sort((a, b) => b.most - a.most);
  const small = tops.filter(({ most }) => most > 0 && most * flat < tops[0].most);
  const counts = here[0].points.map(([, , n]) => n).filter((n) => n > 0).sort((a, b) => a - b);
  const spike = here.length === 1 && counts.length > 4 && counts[counts.length >> 1] * flat < counts.at(-1);
  const text = scale !== "linear"
    ? ""
    : small.length > 0
      ? `${short(tops[0].name)} flattens ${small.length === 1 ? short(small[0].name) : `${small.length} other lines`}.`
    : spike ? "A spike flattens the rest."
    : "";
  const hint = $("chart-hint");
  hint.hidden = text === "";
  if (hint.dataset.text === text) return;
  hint.dataset.text = text;
  const offer = (kind, label) => el(
    "button",
    { type: "button", class: "plain", onclick: () => { show(kind); $("plot").focus(); } },
    label,
  );
  hint.replaceChildren(
    el("span", {}, text),
    ...(text === ""
      ? []
      : [offer("log", "Log scale"), ...(small.length > 0 ? [offer("apart", "A chart for each")] : [])]),
  );
}

// shadesOf are the times of which hits may be missing, each with what to call it and a sentence about it.
function shadesOf(here) {
  const clocks = clocksOf(seen.asked.zone);
  const since = Math.max(...here.map((line) => line.since));
  const step = lengthOf(seen.step);
  const whole = Math.max(0, ...here.map(({ completeFrom }) => completeFrom));
  const first = Math.min(...here.flatMap(({ points }) => points.slice(0, 1).map(([t]) => t)));
  const young = whole > 0 && since > whole - step, end = young ? since : whole, out = [];
  if (end > seen.from) {
    const early = first + step <= since ? " Earlier points have only hits that carried their own time." : "";
    out.push({
      from: seen.from,
      to: Math.min(end, seen.to),
      kind: young ? "young" : "lost",
      label: first + step <= end ? "hits may be missing" : "not counted",
      sentence: young
        ? `Counting began at ${momentText(since, clocks)}.${early}`
        : `Hits of the time before ${momentText(whole, clocks)} are known to be missing.`,
    });
  }
  const asOf = Math.min(...here.map((line) => line.asOf)), now = Math.min(clock.now(), seen.to);
  if (now - asOf > lateAfter && here.some(({ complete }) => !complete)) {
    out.push({
      from: Math.max(asOf, seen.from),
      to: seen.to,
      kind: "late",
      label: "not counted yet",
      sentence: `Hits after ${momentText(asOf, clocks)} are not counted yet.`,
    });
  }
  return out;
}

// momentText is a moment, as short as is clear today.
function momentText(t, clocks) {
  const now = clock.now();
  if (Math.abs(now - t) < 600_000) return clocks.second(t);
  return clocks.dated(t) === clocks.dated(now)
    ? clocks.minute(t)
    : now - t < 300 * 86400_000 ? clocks.full(t)
    : clocks.dated(t);
}

function showNote(here, shades, marked) {
  const notes = shades.map((shade) => shade.sentence);
  if (here.some(({ open }) => open < seen.to)) notes.push("Hatched: still being counted.");
  if (drawn.crowd > 1) {
    notes.push(`A line is the mean of ${drawn.crowd} points at a time, in a band from the least to the most of them.`);
  }
  if (lengthOf(seen.step) !== lengthOf(seen.wanted)) {
    notes.push(`A point is ${spoken(seen.step)}: the cells that reach back so far are no finer.`);
  }
  if (seen.note) notes.push(seen.note);
  if (marked?.most) notes.push(`Most steps are further from ${marked.than} than chance explains (2·√n).`);
  else if (marked?.steps.size > 0) notes.push(`▲▼: further from ${marked.than} than chance explains (2·√n).`);
  put($("chart-note"), notes.join(" "));
}

// point shows the period before of one line only, because those of all would hide each other; -1 shows none.
function point(line) {
  pointed = line;
  for (const path of drawn?.root.querySelectorAll("path.before") ?? []) {
    path.classList.toggle("pointed", path.dataset.line === String(line));
  }
}

function summary() {
  const n = moments().length;
  return n === 0
    ? "no points yet"
    : `${n} points of ${spoken(seen.step)}; arrow keys read them, Enter zooms in, Escape goes back`;
}

const timeOf = (event) => drawn.at(
  Math.max(drawn.left, Math.min(drawn.right, event.clientX - $("plot").getBoundingClientRect().left)),
);

// indexAt is the step in which a moment lies.
function indexAt(t) {
  const all = moments();
  let low = 0, high = all.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (all[middle] <= t) low = middle + 1;
    else high = middle;
  }
  return all.length === 0 ? -1 : Math.max(0, low - 1);
}

// read reads all lines at one step; -1 reads none.
function read(i, keyboard = false) {
  const box = $("plot"), reading = $("reading");
  [at, byKey] = [i, keyboard];
  box.querySelector(".cursor")?.remove();
  reading.hidden = i < 0 || !drawn;
  if (reading.hidden) return;
  const here = lines();
  const [t, end] = here[0].points[i];
  const clocks = clocksOf(seen.asked.zone);
  const step = lengthOf(seen.step);
  const x = drawn.x((t + end) / 2);
  moment = t;
  const time = step > 86400_000 * 27 || clock.now() - t > 300 * 86400_000
    ? clocks.dated(t)
    : step >= 3600_000 || seen.length > 43200_000 || seen.to < clock.now() - 43200_000 ? clocks.full(t)
    : step < 60_000 ? clocks.second(t)
    : clocks.minute(t);
  const values = here.map((line) => {
    const [, , n, least, most] = line.points.find(([from]) => from === t) ?? [t, end, 0];
    const before = line.before.find(([from, to]) => from <= t && t < to)?.[2];
    const bounds = least === undefined || least === most ? "" : ` (${number(least)} – ${number(most)})`;
    return {
      ...line,
      n,
      more: bounds + (before === undefined ? "" : `, before ${number(Math.round(before))}`),
      open: t >= line.open,
    };
  });
  drawn.root.append(svg("g", { class: "cursor" }, svg("line", { x1: x, x2: x, y1: drawn.top, y2: drawn.bottom }),
    ...values.map(({ line, n }) => svg("circle", { "data-line": line, cx: x, cy: drawn.y(line, n), r: 4 }))));
  const open = values.some((value) => value.open);
  const missing = drawn.shades.filter((shade) => end > shade.from && t < shade.to).map((shade) => shade.sentence);
  reading.replaceChildren(el("p", {}, `${time}, ${spoken(seen.step)}${open ? ", so far" : ""}`),
    ...values.map(({ name, line, n, more }) => el("p", { class: "value", "data-line": line },
      el("span", { class: "swatch" }),
      el("bdi", {}, shown(name)),
      el("b", {}, number(n)),
      more === "" ? null : el("span", { class: "more-of" }, more.replace(/^[ ,]+/, "")))),
    ...missing.map((text) => el("p", { class: "missing" }, text)));
  placeReading(x);
  box.setAttribute("aria-valuenow", i);
  const spokenValues = values.map(({ name, n, more }) => `${apart(name)} ${number(n)}${more}`).join(", ");
  box.setAttribute("aria-valuetext", `${time}${open ? ", so far" : ""}: ${spokenValues}`);
}

// readAt reads the step in which a moment lies.
export function readAt(t) {
  if (!seen) return;
  $("plot").focus({ preventScroll: true });
  read(indexAt(t), true);
}

function placeReading(x) {
  const box = $("plot"), reading = $("reading"), room = box.clientWidth - reading.offsetWidth - 4;
  const wanted = x + (x > box.clientWidth / 2 ? -reading.offsetWidth - 14 : 14);
  reading.style.left = `${Math.max(4, Math.min(room, wanted))}px`;
}

function press(event) {
  if (!drawn || event.button !== 0) return;
  if (event.pointerType !== "touch") { // a finger reads, and scrolls the page
    dragFrom = event.clientX;
    event.currentTarget.setPointerCapture(event.pointerId);
  }
  hover(event);
}

function hover(event) {
  if (!drawn) return;
  if (dragFrom !== undefined && Math.abs(event.clientX - dragFrom) >= draggedPixels) showDrag(event);
  else readUnder(event);
}

// readUnder shows the step below the pointer, or why it has none.
function readUnder(event) {
  const t = timeOf(event), shade = drawn.shades.find(({ from, to }) => from <= t && t < to);
  if (!shade || (moments().length > 0 && t >= moments()[0])) {
    read(indexAt(t));
    point(nearest(event));
    return;
  }
  read(-1);
  $("reading").replaceChildren(el("p", { class: "missing" }, shade.sentence));
  $("reading").hidden = false;
  placeReading(drawn.x(t));
}

// nearest returns the line that is the nearest to the pointer at its moment.
function nearest(event) {
  const y = event.clientY - $("plot").getBoundingClientRect().top;
  const far = ({ line, points }) => Math.abs(drawn.y(line, points[at]?.[2] ?? 0) - y);
  return lines().reduce((a, b) => (far(b) < far(a) ? b : a)).line;
}

// dragged is the range of a drag, in whole steps.
function dragged(event) {
  const here = lines()[0].points, ends = [timeOf({ clientX: dragFrom }), timeOf(event)].sort((a, b) => a - b);
  if (here.length === 0) return ends;
  return [Math.max(here[indexAt(ends[0])][0], seen.from), here[indexAt(ends[1])][1]];
}

function showDrag(event) {
  const [from, to] = dragged(event), clocks = clocksOf(seen.asked.zone), x = drawn.x(from);
  read(-1);
  drawn.root.querySelector(".selection")?.remove();
  drawn.root.append(
    svg("rect", {
      class: "selection",
      x,
      y: drawn.top,
      width: Math.max(1, drawn.x(to) - x),
      height: drawn.bottom - drawn.top,
    }),
  );
  $("reading").replaceChildren(el("p", {}, `${clocks.full(from)} to ${clocks.full(to)}`));
  $("reading").hidden = false;
  placeReading(drawn.x(to));
}

function release(event) {
  const far = dragFrom !== undefined && Math.abs(event.clientX - dragFrom) >= draggedPixels;
  const range = far && drawn ? dragged(event) : undefined;
  endDrag();
  if (range) zoom(...range);
}

function endDrag() {
  dragFrom = undefined;
  drawn?.root.querySelector(".selection")?.remove();
  $("reading").hidden = at < 0;
}

// zoom asks for a part of the range, of at least some cells.
function zoom(from, to) {
  const { cell } = tierOf(seen.uniques ? about.unique_tiers : about.tiers, to - from, clock.now() - from);
  const least = 4 * lengthOf(cell);
  const middle = (from + to) / 2;
  if (to - from < least) {
    [from, to] = [middle - least / 2, middle + least / 2].map((t) => Math.round(t / lengthOf(cell)) * lengthOf(cell));
  }
  if (to > seen.to) [from, to] = [from - (to - seen.to), seen.to];
  if (from <= seen.from && to >= seen.to) return;
  zooms++;
  // the tier need not hold all of the first step
  move(() => hooks.zoom(Math.round(Math.max(from, seen.begin)), Math.round(to)));
}

function back() {
  zooms = Math.max(0, zooms - 1);
  move(() => hooks.back());
}

// move has the page ask for another range, on the chart's own account.
function move(ask) {
  moving = true;
  ask();
  moving = false;
}

function onKey(event) {
  const last = moments().length - 1, from = at < 0 ? last : at;
  const to = {
    ArrowLeft: from - 1,
    ArrowDown: from - 1,
    ArrowRight: from + 1,
    ArrowUp: from + 1,
    PageUp: from - 10,
    PageDown: from + 10,
    Home: 0,
    End: last,
  }[event.key];
  if (event.key === "Escape") {
    if (dragFrom === undefined) back();
    endDrag();
    read(-1);
  }
  if (event.key === "Enter" && at >= 0) {
    event.preventDefault();
    const quarter = (seen.to - seen.from) / 4;
    const middle = lines()[0].points[at].slice(0, 2).reduce((a, b) => a + b) / 2;
    const begin = Math.max(seen.from, Math.min(seen.to - quarter, middle - quarter / 2));
    zoom(moments()[indexAt(begin)], lines()[0].points[indexAt(begin + quarter)][1]);
  }
  if (to === undefined || last < 0) return;
  event.preventDefault();
  read(Math.max(0, Math.min(last, to)), true);
}

// copies writes the lines in other forms. It is loaded when the menu is first opened.
const copies = () => import("./copies.js");

// items are what the menu offers of the lines that are seen.
function items() {
  if (!seen) return [];
  copies();
  const here = lines();
  const { step, requests, asked } = seen;
  const subject = here.length === 1 ? here[0].name.replace(/[^\w.-]+/g, "-").slice(0, 60) : `${here.length}-lines`;
  const name = `tallyroll-${subject}`;
  const own = (line) => here.some(({ key, prefix }) => key === line.key && prefix === line.prefix);
  const params = () => (isolated === ""
    ? requests
    : requestsOf(
      asked.lines.filter(own),
      { ...rangeAsked(requests[0].params, seen.wanted, asked.zone), uniques: seen.uniques },
    )).map((request) => request.params);
  const color = (line) => getComputedStyle(
    document.querySelector(`#plot [data-line="${line}"]`),
  ).getPropertyValue("--ink").trim();
  const style = getComputedStyle($("chart"));
  const narrow = $("scales").checkVisibility()
    ? []
    : [
      ["linear", "Linear scale"],
      ["log", "Log scale"],
      ...(here.length > 1 ? [["apart", "A chart for each"]] : []),
    ].filter(([kind]) => kind !== scale);
  return [
    ...narrow.map(([kind, label]) => [label, () => show(kind)]),
    ["Download CSV", async () => save(`${name}.csv`, "text/csv", (await copies()).csv(here, asked.zone))],
    [
      "Download SVG",
      async () => save(
        `${name}.svg`,
        "image/svg+xml",
        (await copies()).picture(
          drawn,
          here.map((line) => ({ name: line.name, color: color(line.line) })),
          style.backgroundColor,
          style.color,
        ),
      ),
    ],
    ["Copy as curl", async () => copy((await copies()).curl("v1/series", params()), "Copied the command.")],
    ["Copy as PromQL", async () => copy((await copies()).promql(here, step, seen.uniques), "Copied the query.")],
    ["Copy as a link", () => copy(location.href, "Copied the address of this view.")],
  ];
}

function rangeAsked(params, step, zone) {
  const given = Object.fromEntries(params);
  return { from: given.from, to: given.to ?? null, step, zone };
}
