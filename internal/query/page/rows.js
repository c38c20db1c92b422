// The rows of the explorer: how a node looks, and the tip with all about its numbers.
import { $, el, put } from "./dom.js";
import { aboutOverflow, shown, number } from "./format.js";
import { sparkline } from "./plot.js";

const made = new Map(); // the rows that are shown, by the id of their node

function newRow() {
  const parts = {
    caret: el("button", { type: "button", class: "caret", tabindex: "-1", "aria-label": "Show its parts" }),
    swatch: el("span", { class: "swatch", "aria-hidden": "true" }),
    name: el("bdi"),
    counters: el("span", { class: "counters" }),
    value: el("span", { class: "value" }),
    margin: el("span", { class: "margin" }),
    bar: el("span", { class: "bar-fill", "aria-hidden": "true" }),
    visitors: el("td", { role: "gridcell", class: "visitors" }),
    change: el("span", { class: "change" }),
    trend: el("td", { role: "gridcell", class: "trend" }),
  };
  parts.row = el("tr", { role: "row", tabindex: "-1" },
    el(
      "th",
      { role: "rowheader", scope: "row", class: "name" },
      parts.bar,
      el("div", {}, parts.caret, parts.swatch, parts.name, parts.counters),
    ),
    parts.visitors,
    el("td", { role: "gridcell", class: "total" }, parts.value, " ", parts.margin),
    el("td", { role: "gridcell", class: "rate" }, parts.change),
    parts.trend);
  return parts;
}

const mark = (row, name, value) => (
  value === undefined
    ? row.removeAttribute(name)
    : row.getAttribute(name) !== String(value) && row.setAttribute(name, value)
);

function fill(parts, node, { largest, line, open, first }) {
  const { row } = parts, before = parts.node;
  parts.node = node;
  mark(row, "aria-level", node.level);
  mark(row, "aria-expanded", node.members ? open : undefined);
  mark(row, "aria-selected", line >= 0);
  mark(row, "data-line", line >= 0 ? line : undefined);
  mark(row, "data-key", node.line.key);
  mark(row, "data-prefix", node.line.prefix);
  mark(row, "data-pinned", node.pinned ? "" : undefined);
  mark(row, "data-first", first ? "" : undefined); // of its part of the table
  row.style.setProperty("--level", Math.min(node.level, 9) - 1);
  put(parts.name, shown(node.label));
  const about = aboutOverflow(node.line.name);
  mark(row, "data-overflow", about ? "" : undefined);
  mark(parts.name, "title", shown(node.name) + about);
  put(parts.counters, node.members ? number(node.counters) : "");
  mark(parts.counters, "title", node.members ? `${number(node.counters)} counters` : undefined);
  const { value, margin } = node.words ?? { value: "–", margin: "" };
  const moved = before && before.id === node.id && parts.value.textContent !== value && parts.value.textContent !== "–";
  put(parts.value, value);
  put(parts.margin, margin);
  const total = largest > 0 && node.now ? node.now.total : 0;
  parts.bar.style.width = `${total > 0 ? Math.max(.8, Math.min(100, (total / largest) * 100)) : 0}%`;
  put(parts.visitors, node.visitors?.text ?? "");
  mark(parts.visitors, "title", node.visitors?.title);
  put(parts.change, node.change?.text ?? "");
  mark(parts.change, "data-kind", node.change?.kind);
  if (moved) {
    parts.value.classList.remove("changed");
    requestAnimationFrame(() => parts.value.classList.add("changed"));
  }
}

// drawRows makes the rows those of the nodes. Rows that stay keep their place in the document, and the focus.
export function drawRows(nodes, look) {
  const body = $("rows"), ids = new Set(nodes.map(({ id }) => id));
  for (const [id, { row }] of made) {
    if (ids.has(id)) continue;
    row.remove();
    made.delete(id);
  }
  nodes.forEach((node, i) => {
    if (!made.has(node.id)) made.set(node.id, newRow());
    const parts = made.get(node.id);
    fill(parts, node, look(node, nodes[i - 1]));
    if (body.children[i] !== parts.row) move(body, parts.row, i);
  });
  const [reached] = nodes.filter(({ id }) => id === current);
  setCurrent(reached ? current : nodes[0]?.id);
  if (tipped && !ids.has(tipped)) hideTip();
  else if (tipped) showTip(made.get(tipped).row);
}

// move puts a row at its place. The row with the focus would lose it, so it gets it back.
function move(body, row, i) {
  const focused = row.contains(document.activeElement);
  body.insertBefore(row, body.children[i] ?? null);
  if (focused) row.focus({ preventScroll: true });
}

// drawTrend draws the sparkline of a node's row.
export function drawTrend(id, series, span) {
  const parts = made.get(id);
  if (!parts || parts.series === series) return;
  parts.series = series;
  parts.trend.replaceChildren(...(series ? [sparkline(series, span.from, span.to)] : []));
}

export const nodeOf = (row) => [...made.values()].find((parts) => parts.row === row)?.node;

// One row is reached by Tab, and arrow keys go on from it.
let current;
export function setCurrent(id) {
  if (current !== id) made.get(current)?.row.setAttribute("tabindex", "-1");
  current = id;
  made.get(id)?.row.setAttribute("tabindex", "0");
}

export function focusRow(id) {
  setCurrent(id);
  made.get(id)?.row.focus();
}

let tipped;

// showTip shows all about a row's numbers, below its total.
export function showTip(row) {
  const node = nodeOf(row), tip = $("tip");
  if (!node?.now) return;
  tipped = node.id;
  const lines = [...node.words.sentences, ...(node.change ? [node.change.title] : [])];
  const { title } = row.querySelector("bdi");
  tip.replaceChildren(el("p", {}, el("bdi", {}, title)), ...lines.map((line) => el("p", {}, line)));
  tip.hidden = false;
  row.setAttribute("aria-describedby", "tip");
  const table = $("explore").getBoundingClientRect(), cell = row.querySelector(".total").getBoundingClientRect();
  const right = cell.width > 0 ? cell.right : row.getBoundingClientRect().right;
  const furthest = Math.min(right - table.left, table.width - 8) - tip.offsetWidth;
  tip.style.left = `${Math.max(8, furthest)}px`;
  tip.style.top = `${cell.bottom - table.top + (cell.width > 0 ? 2 : 44)}px`;
}

export function hideTip() {
  if (tipped) made.get(tipped)?.row.removeAttribute("aria-describedby");
  tipped = undefined;
  $("tip").hidden = true;
}
