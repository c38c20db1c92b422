// The choice of the range, on top of the page.
import { $, el, put } from "./dom.js";
import { view, change, onChange } from "./view.js";
import { compares, ranges, labelOf, spanOf, reach, zoneName } from "./range.js";
import { clock } from "./api.js";

export function start() {
  for (const range of ranges.includes(view.range) ? ranges : [view.range, ...ranges]) {
    const input = el("input", { type: "radio", name: "range", value: range, onchange: () => choose(range) });
    $("range").append(el("label", {}, input, el("span", {}, labelOf(range))));
    $("range-select").append(el("option", { value: range }, labelOf(range)));
  }
  $("range-select").addEventListener("change", () => choose($("range-select").value));
  for (const id of ["own-from", "own-to"]) $(id).addEventListener("change", own);
  $("compare").addEventListener("change", () => change({ compare: $("compare").checked }));
  put($("zone"), zoneName.replaceAll("_", " "));
  onChange(draw);
  draw();
}

// choose takes a range. One of the reader's own begins as that which was shown before.
function choose(range) {
  if (range !== "custom") return change({ range, from: 0, to: 0 });
  const { from, to } = spanOf(view), minute = 60_000;
  return change({ range, from: Math.floor(from / minute) * minute, to: to ?? 0 });
}

// own takes what the reader has written, if it is a range.
function own() {
  const [from, to] = ["own-from", "own-to"].map((id) => new Date($(id).value).getTime());
  const now = clock.now();
  const why = Number.isNaN(from)
    ? "Say when it begins."
    : to <= from ? "It ends before it begins."
    : from >= now ? "It begins in the future."
    : from < now - reach ? `The tiers reach back to ${written(now - reach).replace("T", " ")}.` : "";
  put($("own-why"), why);
  if (!why) change({ range: "custom", from, to: Number.isNaN(to) || to >= now ? 0 : to });
}

// written is a moment as fields for a time have it, in the reader's own zone.
const written = (t) => new Date(t - new Date(t).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);

function draw() {
  for (const input of $("range").querySelectorAll("input")) input.checked = input.value === view.range;
  $("range-select").value = view.range;
  const span = spanOf(view);
  $("compare").checked = compares(view, span);
  $("compare").disabled = span.before === null;
  $("compare").nextElementSibling.replaceChildren(
    "Compare",
    el("span", { class: "wide" }, " with the period before"),
    span.before === null ? ": no tier reaches back to it" : "",
  );
  $("own").hidden = view.range !== "custom";
  if (view.range !== "custom" || $("own").contains(document.activeElement)) return;
  put($("own-why"), "");
  const now = clock.now();
  $("own-from").value = written(view.from);
  $("own-to").value = view.to ? written(view.to) : "";
  for (const id of ["own-from", "own-to"]) Object.assign($(id), { min: written(now - reach + 60_000) });
}
