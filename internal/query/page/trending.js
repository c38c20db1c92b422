// The counters with most hits, and how much that is more or less than in the window before.
import { $, el, put, repeat, say, segments } from "./dom.js";
import { number, seconds, spoken, brief, moment, sentence, shown } from "./format.js";
import { ask, post, clock } from "./api.js";
import { gapOf } from "./totals.js";
import { view, topWindows, most, full, add, remove, change, onChange } from "./view.js";

const listed = 10;
let latest;

export function start() {
  segments($("top-windows"), "top", topWindows.map((w) => [w, brief(w)]), view.top, (top) => change({ top }));
  const reload = repeat(load);
  onChange((parts) => {
    if (parts.top) reload();
    else if (parts.keys && latest) draw();
  });
}

async function load() {
  const length = view.top;
  try {
    const now = await ask("v1/top", [["window", length], ["limit", listed]]);
    if (length !== view.top) return 0;
    const before = now.top.length > 0 ? await windowBefore(now.top.map(({ key }) => key), length) : { totals: [] };
    latest = { length, now, before: new Map(before.totals.map((t) => [t.key, t])) };
    draw();
  } catch (error) {
    if (!latest) put($("top-note"), sentence(error.message));
    return 3;
  }
  return length === "1m" ? 2 : 5;
}

// windowBefore are the totals of the same counters in the window that ended when this one began.
async function windowBefore(keys, length) {
  const at = Math.round(clock.now() - seconds(length) * 1000);
  try {
    return await post("v1/total", { keys, windows: [length], at });
  } catch (error) {
    if (error.status === 400) return { totals: [] }; // no tier reaches back so far
    throw error;
  }
}

// changeOf compares two totals. Where their bounds leave it open whether there were more or fewer, it says so.
function changeOf(now, before) {
  if (!before) return { text: "–", title: "No tier reaches back to the window before.", kind: "none" };
  if (!before.complete) return { text: "–", title: "Nobody counted all of the window before.", kind: "none" };
  if (now.upper === null) return { text: "–", title: "Nobody has counted lately.", kind: "none" };
  const title = `Before: ${number(before.total)} (${number(before.lower)} to ${number(before.upper)})`;
  if (now.lower <= before.upper && before.lower <= now.upper) return { text: "≈ same", title: `${title}. The bounds overlap.`, kind: "none" };
  if (before.total === 0) return { text: "new", title, kind: "up" };
  const percent = Math.round((now.total / before.total - 1) * 100);
  if (percent > 999) return { text: `× ${number(Math.round(now.total / before.total))}`, title, kind: "up" };
  return { text: `${percent < 0 ? "−" : "+"}${Math.abs(percent)} %`, title, kind: percent < 0 ? "down" : "up" };
}

function draw() {
  const { length, now, before } = latest;
  const room = view.keys.length < most;
  const largest = Math.max(1, ...now.top.map(({ total }) => total));
  put($("top-before"), `vs the ${spoken(length)} before`.replace("the 1 ", "the "));
  const focused = document.activeElement?.closest?.("#top-rows button")?.dataset.key;
  $("top-rows").replaceChildren(...now.top.map((t) => {
    const { text, title, kind } = changeOf(t, before.get(t.key));
    const line = view.keys.indexOf(t.key);
    const bar = el("span", { class: "bar-fill", "aria-hidden": "true" });
    bar.style.width = `${(t.total / largest) * 100}%`;
    const button = el("button", { type: "button", class: "pick", "aria-pressed": String(line >= 0), title: line >= 0 ? "Remove from the view" : room ? "Add to the view" : full,
      onclick: () => { if (line >= 0) remove(t.key); else if (!add(t.key)) say(full); } }, el("span", { class: "swatch", "aria-hidden": "true" }), el("bdi", {}, shown(t.key)));
    button.dataset.key = t.key;
    if (line >= 0) button.dataset.line = line;
    return el("tr", {}, el("th", { scope: "row" }, bar, button),
      el("td", { class: "number", title: t.upper === null ? `at least ${number(t.lower)}` : `${number(t.lower)} to ${number(t.upper)}` }, number(t.total)),
      el("td", { class: "number change", "data-kind": kind, title }, text));
  }));
  if (focused !== undefined) document.querySelector(`#top-rows button[data-key="${CSS.escape(focused)}"]`)?.focus();
  const gap = gapOf({ ...now, upper: now.floor, from: new Date(clock.now() - seconds(length) * 1000).toISOString() });
  const notes = [];
  if (!room && now.top.some(({ key }) => !view.keys.includes(key))) notes.push(full);
  if (now.top.length === 0) notes.push(`No hits in the last ${spoken(length)}.`);
  if (gap) notes.push(gap.kind === "young" ? `Counting began at ${moment(Date.parse(now.counting_since), clock.now())}, inside this window.` : gap.long);
  if (now.floor) notes.push(`A counter that is not in this list has at most ${number(now.floor)} hits.`);
  put($("top-note"), notes.join(" "));
}
