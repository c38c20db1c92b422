// The views of the page: counters, limits, alerts and operate. The address has which one is shown, so that
// Back leads to the one before, and views can be shared. On the body stands data-view, if it is not that of
// the counters.
import { $, say } from "./dom.js";

// part loads a view's module and its style, which have the name of the view.
async function part(view) {
  const link = document.createElement("link");
  const style = new Promise((resolve, reject) => {
    link.onload = resolve;
    link.onerror = () => { link.remove(); reject(new Error(link.href)); };
  });
  link.rel = "stylesheet";
  link.href = new URL(`${view}.css`, import.meta.url).href;
  document.head.append(link);
  return (await Promise.all([import(`./${view}.js`), style]))[0];
}

const names = { limits: "Limits", alerts: "Alerts", operate: "Operate" };
let counters = document.title; // the title of the counters' view, while another one is shown

function asked() {
  const view = new URLSearchParams(location.search).get("view");
  return Object.hasOwn(names, view) ? view : "";
}

// addressOf is the present address with another view.
function addressOf(view) {
  const params = new URLSearchParams(location.search);
  params.delete("view");
  if (view) params.set("view", view);
  const query = params.toString();
  return query ? `?${query}` : location.pathname;
}

function show() {
  const view = asked(), before = document.body.dataset.view ?? "";
  for (const link of $("views").querySelectorAll("[data-to]")) {
    if (link.dataset.to === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === before) return;
  if (before === "") counters = document.title;
  if (view) document.body.dataset.view = view;
  else delete document.body.dataset.view;
  document.title = view ? `${names[view]} · Tallyroll` : counters;
  say(names[view] ?? "Counters");
  load(view);
  document.dispatchEvent(new Event("viewchange"));
}

// load starts the part that shows a view, once. If the part cannot be had now, the next look at the view asks again.
const loaded = new Set();
function load(view) {
  if (!view || loaded.has(view)) return;
  loaded.add(view);
  part(view).then(({ start }) => start(), () => loaded.delete(view));
}

export function start() {
  const nav = $("views");
  // The parts of the address that belong to the counters change without a word to this file.
  const refresh = () => nav.querySelectorAll("[data-to]").forEach((link) => {
    link.href = addressOf(link.dataset.to);
  });
  for (const event of ["pointerover", "focusin"]) nav.addEventListener(event, refresh);
  nav.addEventListener("click", (event) => {
    const link = event.target.closest("[data-to]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    if (link.dataset.to === asked()) return;
    history.pushState(null, "", addressOf(link.dataset.to));
    show();
    scrollTo(0, 0);
  });
  addEventListener("popstate", show);
  show();
}
