// The explorer's table under the hands of its reader: pointer and keyboard, as in any tree. As one types into the
// search, it shows the counters whose names have the text in them.
import { $, segments } from "./dom.js";
import { visible, expand, pick } from "./explore.js";
import { change, counterLine, lineOf, onChange, sumLine, view } from "./view.js";
import { nodeOf, focusRow, setCurrent, showTip, hideTip } from "./rows.js";

const rowOf = (event) => event.target.closest?.("#rows > tr");

export function start() {
  startSearch();
  const body = $("rows"), table = $("rows-table");
  // Where there is no room for all columns, the reader chooses one.
  const columns = [["total", "Hits"], ["rate", "Change"], ["trend", "Over time"], ["visitors", "Visitors"]];
  segments($("column"), "column", columns, table.dataset.column, (column) => {
    table.dataset.column = column;
    if (column === "total") change({ sort: "total", turned: false });
    if (column === "rate") change({ sort: "change", turned: false });
  });
  body.addEventListener("click", (event) => {
    const row = rowOf(event), node = row && nodeOf(row);
    if (!node) return;
    setCurrent(node.id);
    if (node.members && event.target.closest(".caret")) {
      focusRow(node.id);
      expand(node);
    } else pick(node);
  });
  body.addEventListener("dblclick", (event) => event.preventDefault());
  body.addEventListener("keydown", onKey);
  body.addEventListener("focusin", (event) => { if (rowOf(event)?.matches(":focus-visible")) showTip(rowOf(event)); });
  body.addEventListener("focusout", hideTip);
  body.addEventListener("pointerover", (event) => {
    const cell = event.pointerType === "mouse" && event.target.closest?.(".total, .rate");
    if (cell) showTip(rowOf(event));
    else if (!rowOf(event)?.matches(":focus-visible")) hideTip();
  });
  body.addEventListener("pointerleave", hideTip);
}

// first moves the focus from the search into the table.
function first() {
  if (visible.length > 0) focusRow(visible[0].id);
}

function onKey(event) {
  const row = rowOf(event), node = row && nodeOf(row);
  if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = visible.indexOf(node), last = visible.length - 1;
  const go = (to) => focusRow(visible[Math.max(0, Math.min(last, to))].id);
  const act = {
    ArrowDown: () => go(at + 1),
    ArrowUp: () => (at === 0 ? $("search").focus() : go(at - 1)),
    PageDown: () => go(at + 10),
    PageUp: () => go(at - 10),
    Home: () => go(0), End: () => go(last), Enter: () => pick(node), " ": () => pick(node), Escape: hideTip,
    ArrowRight: () => (
      node.members && row.getAttribute("aria-expanded") === "false" ? expand(node, true) : node.members && go(at + 1)
    ),
    ArrowLeft: () => {
      if (row.getAttribute("aria-expanded") === "true") return expand(node, false);
      const parent = visible.slice(0, at).findLastIndex(({ level, pinned }) => !pinned && level < node.level);
      return parent >= 0 && !node.pinned && go(parent);
    },
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

const quiet = 150; // milliseconds without a letter, before the service is asked
let timer;

function startSearch() {
  const field = $("search");
  const search = () => {
    clearTimeout(timer);
    if (field.value !== view.find) change({ find: field.value });
  };
  field.value = view.find;
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, quiet);
  });
  field.addEventListener("keydown", (event) => {
    if (!["Escape", "Enter", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") field.value = "";
    search();
    if (event.key === "ArrowDown") first();
    if (event.key === "Enter" && field.value) take(field.value);
  });
  onChange(() => { if (document.activeElement !== field) field.value = view.find; });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches?.("input, select, textarea");
    if (event.key === "/" &&
      !typing &&
      !event.ctrlKey &&
      !event.metaKey &&
      !event.altKey &&
      !document.querySelector("dialog[open]")) { event.preventDefault(); field.focus();}
  });
}

// take puts the counter of that name into the chart: one that has no hits yet, too. With a * at its end, it is the
// sum of all that begin with the rest.
function take(name) {
  const line = name.endsWith("*") ? sumLine(name.slice(0, -1)) : counterLine(name);
  if (lineOf(line) < 0) pick({ line });
}
