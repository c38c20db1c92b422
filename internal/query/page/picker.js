// The search for counters: a combobox over the names that begin with what is typed.
import { $, el, put } from "./dom.js";
import { shown, apart } from "./format.js";
import { ask } from "./api.js";
import { view, add, remove, most, full } from "./view.js";

const listed = 50;
let options = [], active = -1, asked = 0, timer;

const input = () => $("search");

export function start() {
  const field = input();
  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, 120); });
  field.addEventListener("focus", search);
  field.addEventListener("keydown", onKey);
  $("picker").addEventListener("focusout", (event) => { if (!$("picker").contains(event.relatedTarget)) close(); });
  $("drop").addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches?.("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && !$("token").open) {
      event.preventDefault();
      field.focus();
    }
  });
}

async function search() {
  const mine = ++asked, prefix = input().value;
  let note = "";
  try {
    const page = await ask("v1/counters", [["limit", listed], ...(prefix ? [["prefix", prefix]] : [])]);
    if (mine !== asked) return;
    options = page.counters;
    if (page.next) note = "There are more: type on.";
    if (options.length === 0) note = prefix ? `No counter begins with “${apart(prefix)}”. Enter adds it all the same.` : "There are no counters yet.";
  } catch (error) {
    if (mine !== asked) return;
    [options, note] = [[], error.message];
  }
  if (document.activeElement === input()) open(note);
}

function open(note) {
  active = options.length > 0 && input().value !== "" ? 0 : -1;
  $("found").replaceChildren(...options.map((key, i) => {
    const chosen = view.keys.includes(key);
    return el("li", { role: "option", id: `option${i}`, "aria-selected": String(chosen), onclick: () => choose(key) }, el("bdi", {}, shown(key)),
      el("span", { class: "mark", "aria-hidden": "true" }, chosen ? "✓" : ""));
  }));
  if (view.keys.length >= most) note = full;
  put($("found-note"), note ?? "");
  $("drop").hidden = false;
  input().setAttribute("aria-expanded", "true");
  mark();
}

function close() {
  asked++; // an answer that comes now opens nothing
  clearTimeout(timer);
  $("drop").hidden = true;
  input().setAttribute("aria-expanded", "false");
  input().removeAttribute("aria-activedescendant");
}

function mark() {
  [...$("found").children].forEach((option, i) => option.classList.toggle("active", i === active));
  const option = $("found").children[active];
  if (!option) {
    input().removeAttribute("aria-activedescendant");
    return;
  }
  input().setAttribute("aria-activedescendant", option.id);
  option.scrollIntoView({ block: "nearest" });
}

function choose(key) {
  if (view.keys.includes(key)) remove(key);
  else add(key);
  input().value = "";
  input().focus();
  search();
}

function onKey(event) {
  const open = !$("drop").hidden;
  if (event.key === "Escape") {
    if (open) close();
    else input().value = "";
    event.preventDefault();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (!open) { search(); return; }
    const step = event.key === "ArrowDown" ? 1 : -1;
    active = (active + step + options.length + (active < 0 && step < 0 ? 1 : 0)) % Math.max(1, options.length);
    mark();
  } else if (event.key === "Enter") {
    const key = open && active >= 0 ? options[active] : input().value;
    if (key) choose(key);
    event.preventDefault();
  }
}
