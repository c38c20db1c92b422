// The rolling totals: a row for each counter, a cell for each window.
import { $, el, put } from "./dom.js";
import { number, atMinute, inFull, onDay, spoken, shown, apart } from "./format.js";
import { view, windows, remove, most } from "./view.js";

const rows = new Map(); // counter → {row, cells: Map of window → parts}

// start makes a column for each window.
export function start() {
  $("totals-head").append(...windows.map((length) => el("th", { role: "columnheader", scope: "col" }, spoken(length))));
  $("totals-table").dataset.columns = windows.length;
}

// layOut makes the rows those of the chosen counters. Rows that stay keep their numbers.
export function layOut() {
  for (const [key, { row }] of rows) {
    if (view.keys.includes(key)) continue;
    const inside = row.contains(document.activeElement);
    row.remove();
    rows.delete(key);
    if (inside) $("search").focus(); // else the focus would be lost with the row
  }
  view.keys.forEach((key, i) => {
    if (!rows.has(key)) rows.set(key, newRow(key));
    const { row } = rows.get(key);
    row.dataset.line = i;
    if ($("totals-rows").children[i] !== row) $("totals-rows").insertBefore(row, $("totals-rows").children[i] ?? null);
  });
  $("totals-table").hidden = view.keys.length === 0;
  note();
}

// note says what the address asks for and the page does not show.
export function note() {
  const asked = view.keys.length + view.waiting.length;
  const waiting = view.waiting.length === 0 ? [] : [`Of the ${asked} counters of this address the page shows ${most}, as many as can be told apart. Remove one, and the next takes its place.`];
  put($("view-note"), [...waiting, ...view.unmet].join(" "));
}

function newRow(key) {
  const cells = new Map(windows.map((length) => [length, newCell(key, length)]));
  const row = el("tr", { role: "row" },
    el("th", { role: "rowheader", scope: "row" }, el("div", { class: "counter" },
      el("span", { class: "swatch", "aria-hidden": "true" }), el("bdi", { class: "name", title: shown(key) }, shown(key)),
      el("button", { type: "button", class: "remove", "aria-label": `Remove ${apart(key)}`, title: "Remove", onclick: () => remove(key) }, "×"))),
    ...[...cells.values()].map((parts) => parts.cell));
  row.dataset.key = key;
  return { row, cells };
}

let nextTip = 0;

function newCell(key, length) {
  const id = `tip${nextTip++}`;
  const value = el("span", { class: "value" }, "–");
  const bounds = el("span", { class: "bounds" }, " ");
  const flag = el("span", { class: "flag", hidden: true });
  const tip = el("div", { class: "tip", role: "tooltip", id });
  const total = el("div", { class: "total", tabindex: "0", role: "group", "aria-label": `${apart(key)}, ${spoken(length)}`, "aria-describedby": id,
    onkeydown: (event) => { if (event.key === "Escape") total.classList.add("quiet"); },
    onblur: () => total.classList.remove("quiet"), onpointerleave: () => total.classList.remove("quiet"),
  }, el("span", { class: "window", "aria-hidden": "true" }, spoken(length)), value, el("span", { class: "under" }, bounds, flag), tip);
  const cell = el("td", { role: "cell" }, total);
  cell.dataset.window = length;
  return { cell, total, value, bounds, flag, tip };
}

// show puts a total, as /v1/total and /v1/live give it, into its cell.
export function show(t) {
  const parts = rows.get(t.key)?.cells.get(t.window);
  if (!parts) return;
  const text = number(t.total);
  const changed = parts.value.textContent !== text && parts.value.textContent !== "–";
  put(parts.value, text);
  parts.value.dataset.size = text.length > 13 ? "s" : text.length > 10 ? "m" : "l";
  put(parts.bounds, t.upper === null ? `at least ${number(t.lower)}` : t.lower === t.upper ? "exact" : `${number(t.lower)} – ${number(t.upper)}`);
  const gap = gapOf(t);
  parts.flag.hidden = !gap;
  if (gap) {
    parts.flag.dataset.kind = gap.kind;
    put(parts.flag, gap.short);
  }
  parts.tip.replaceChildren(...explain(t, gap).map((line) => el("p", {}, line)));
  if (changed) {
    parts.value.classList.remove("changed");
    requestAnimationFrame(() => parts.value.classList.add("changed"));
  }
}

// gapOf says what is missing in a total that is not complete: a young counter is not a lossy one, and hits that wait
// to be counted are not lost.
export function gapOf({ complete, upper, counting_since: since, from }) {
  if (complete) return undefined;
  if (upper === null) {
    return { kind: "late", short: "upper unknown", long: "Nobody has counted lately. How many more hits were stored since is not known." };
  }
  const begun = since ? Date.parse(since) : 0;
  if (begun > Date.parse(from)) {
    return { kind: "young", short: `since ${Date.now() - begun < 86400_000 ? atMinute(begun) : onDay(begun)}`, long: `Counting began at ${inFull(begun)}, inside this window. Nobody counted before.` };
  }
  return { kind: "lost", short: "hits missing", long: "Hits of this window are known to be missing: they were discarded before they could be counted." };
}

function explain(t, gap) {
  const lines = t.upper === null
    ? [`At least ${number(t.lower)}.`]
    : t.lower === t.upper
    ? [`Exactly ${number(t.total)}.`]
    : [`Between ${number(t.lower)} and ${number(t.upper)}.`, `The window begins inside a cell of ${spoken(t.cell)}, which counts in proportion.`];
  lines.push(`From ${inFull(Date.parse(t.from))} until now.`);
  if (gap) lines.push(gap.long);
  return lines;
}
