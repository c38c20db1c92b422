// The explorer's table under the hands of its reader: pointer and keyboard, as in any tree.
import { $, segments } from "./dom.js";
import { visible, expand, pick } from "./explore.js";
import { change } from "./view.js";
import { nodeOf, focusRow, setCurrent, showTip, hideTip } from "./rows.js";

const rowOf = (event) => event.target.closest?.("#rows > tr");

export function start() {
  const body = $("rows"), table = $("rows-table");
  // Where there is no room for all columns, the reader chooses one.
  const columns = [["total", "Hits"], ["rate", "Change"], ["trend", "Over time"]];
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
    const cell = event.pointerType === "mouse" && event.target.closest?.(".total, .share, .rate");
    if (cell) showTip(rowOf(event));
    else if (!rowOf(event)?.matches(":focus-visible")) hideTip();
  });
  body.addEventListener("pointerleave", hideTip);
}

// first moves the focus from the search into the table.
export function first() {
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
