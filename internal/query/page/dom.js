// Small helpers for the document.

export const $ = (id) => document.getElementById(id);

// el makes an element. Text is always set as text, so a counter's name cannot become markup.
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// svg makes an element of a drawing.
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// put sets a node's text if it differs, so that nothing is drawn or read out again without reason.
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// say has a screen reader read something out, once.
let said = "";
export function say(text) {
  if (text === said) return;
  said = text;
  $("said").textContent = text;
}

// segments fills a fieldset with radio buttons that look like one control.
export function segments(fieldset, name, choices, chosen, choose) {
  for (const [value, label] of choices) {
    const input = el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) });
    fieldset.append(el("label", {}, input, el("span", {}, label)));
  }
}

// away reports whether a view is not visible: views.js writes on the body which one is shown, by default the counters.
// The view "any" is all of them.
export const away = (view = "") => document.hidden || (view !== "any" && (document.body.dataset.view ?? "") !== view);

// repeat runs a task now, again after as many seconds as the task returns, and never while the
// tab is hidden or another view is shown. What it returns runs the task at once.
export function repeat(task, view) {
  let timer = 0, running = false, again = false;
  async function run() {
    clearTimeout(timer);
    if (running) { again = true; return; }
    if (away(view)) return;
    running = true;
    const seconds = await task();
    running = false;
    if (again) { again = false; run(); return; }
    timer = setTimeout(run, seconds * 1000);
  }
  document.addEventListener("visibilitychange", run);
  document.addEventListener("viewchange", run);
  run();
  return run;
}
