// The search: as one types, the table shows the counters whose names have the text in them.
import { $ } from "./dom.js";
import { view, change, counterLine, lineOf, onChange } from "./view.js";
import { visible, pick } from "./explore.js";
import { first } from "./grid.js";

const quiet = 150; // milliseconds without a letter, before the service is asked
let timer;

export function start() {
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

// take puts the counter of that name into the chart: one that has no hits yet, too.
function take(name) {
  const node = visible.find((one) => one.line.key === name) ?? { line: counterLine(name) };
  if (lineOf(node.line) < 0) pick(node);
}
