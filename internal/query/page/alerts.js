// Alerts: what the rules of watch say now, and how that has changed.
import { $, el, put, repeat } from "./dom.js";
import { ago, apart, inFull, moment, number, sentence, shown, spoken } from "./format.js";
import { ask, clock, post } from "./api.js";
import { describe, gapOf, inLine } from "./figure.js";

// changes of a page; states whose total now is read; seconds without an evaluation that are too many
const listed = 20, mostNow = 50, stale = 10;
const kinds = ["firing", "unknown", "pending", "resolved", "ok"];
const levels = { firing: "red", unknown: "amber", pending: "amber", resolved: "green", ok: "green" };
let state = "", pages = [[]]; // of each page that the reader has turned to, the parameters
let again = () => {};

export function start() {
  again = repeat(load, "alerts");
}

async function load() {
  const asked = [state, pages.length].join();
  try {
    const [all, some] = await Promise.all([
      ask("v1/watch", [["limit", 1]]),
      ask("v1/watch", [["limit", listed], ...(state ? [["state", state]] : []), ...pages.at(-1)]),
    ]);
    if (asked !== [state, pages.length].join()) return 0; // the reader has turned the page meanwhile
    draw(all, some);
  } catch (error) {
    return fail(error);
  }
  return 3;
}

function fail(error) {
  $("alerts-parts").hidden = true;
  put($("alerts-note"), "");
  const needs = error.status === 501;
  put(
    $("alerts-trouble"),
    needs
      ? "This view needs NATS: set NATS_URL of query to the NATS of your watch, and start query again. " +
        "All else works without it."
      : `${sentence(error.message)} This view comes back by itself.`,
  );
  $("alerts-trouble").classList.toggle("bad", !needs);
  return needs ? 60 : 5;
}

function draw(all, some) {
  const evaluated = Date.parse(all.evaluated_at ?? "");
  const age = (clock.now() - evaluated) / 1000;
  const never = Number.isNaN(evaluated);
  const old = !never && age > stale;
  put($("alerts-note"), never ? "" : old ? "" : `Evaluated at ${moment(evaluated, clock.now())}`);
  put(
    $("alerts-trouble"),
    never
      ? "No rules are watched. Write a file of rules, and start watch with WATCH_FILE set to it."
      : old ? `The rules were evaluated ${ago(age)} ago, and not since: no watch runs, so these states are old.`
      : "",
  );
  $("alerts-trouble").classList.toggle("bad", old);
  $("alerts-parts").hidden = never;
  if (never) return;
  drawKinds(all.counts);
  drawStates(some.states);
  readNow(some.states);
  drawChanges(some);
}

function drawKinds(counts) {
  const box = $("alerts-kinds");
  const total = Object.values(counts).reduce((sum, n) => sum + n, 0);
  for (const name of ["", ...kinds]) {
    let input = box.querySelector(`input[value="${name}"]`);
    if (!input) {
      input = el("input", {
        type: "radio",
        name: "state",
        value: name,
        checked: name === state,
        onchange: () => turn(name, [[]]),
      });
      box.append(el("label", {}, input, el("span", {})));
    }
    put(input.nextSibling, `${name || "all"} ${number(name ? counts[name] ?? 0 : total)}`);
  }
}

// turn shows other states or changes.
function turn(to, through) {
  state = to;
  pages = through;
  again();
}

const words = (kind) => el(
  "span",
  { class: "words", "data-state": levels[kind] },
  el("span", { class: "dot", "aria-hidden": "true" }),
  kind,
);
const hits = (s) => (s.total === null ? "unknown" : number(s.total));
const bounds = (s) => (s.total === null ? "it could not be read" : describe(s).note);
const keyOf = (s) => (s.key === "" ? "all keys" : shown(s.key));

// keep draws again only if something has changed, so that it leaves the reader alone.
function keep(box, of, make) {
  const names = JSON.stringify(of);
  if (box.dataset.of === names) return;
  box.dataset.of = names;
  box.replaceChildren(...make());
}

function drawStates(states) {
  keep($("alerts-rows"), states.map((s) => ({ ...s, as_of: 0, at: 0 })), () => states.map((s) => el("tr", {},
    el(
      "th",
      { scope: "row" },
      el("bdi", {}, shown(s.rule)),
      el(
        "span",
        { class: "under" },
        el("bdi", {}, keyOf(s)),
        s.condition ? ` ${s.condition} in ${spoken(s.window)}` : null,
      ),
    ),
    el("td", { "data-wide": "" }, words(s.state), s.reason ? el("span", { class: "under" }, s.reason) : null),
    el("td", { "data-name": "Since", title: inFull(Date.parse(s.since)) }, moment(Date.parse(s.since), clock.now())),
    el(
      "td",
      { class: "number", "data-name": "Hits then", title: `${bounds(s)}, when the state began` },
      hits(s),
      el("span", { class: "under" }, `in ${spoken(s.window)}`),
    ),
    el("td", { class: "number", "data-name": "Now" }))));
  $("alerts-table").hidden = states.length === 0;
  put($("alerts-none"), states.length > 0 ? "" : state ? `Nothing is ${state}.` : "No rule has a state yet.");
}

// readNow shows the total of the first states' keys now, because the one that a state has is of the moment
// when it began. It asks once for all counters of a window. For a group, no one question asks.
async function readNow(states) {
  // others may stand there when the answers come
  const cells = [...$("alerts-rows").children].map((row) => row.lastElementChild);
  const asked = states.slice(0, mostNow).filter(({ key, of, condition }) => condition && key !== "" && of !== "group");
  const counters = Object.values(Object.groupBy(asked.filter(({ of }) => !of), ({ window, tz }) => `${window} ${tz}`));
  const answers = await Promise.allSettled([ // if a token may not ask, cells stay empty
    ...counters.map(async (of) => {
      const [{ window, tz }] = of;
      const question = { keys: [...new Set(of.map(({ key }) => key))], windows: [window], tz };
      return (await post("v1/total", question)).totals.map((t) => ({ ...t, tz }));
    }),
    ...asked.filter(({ of }) => of).map(async ({ key, window, tz }) => (await ask(
      "v1/total",
      [["prefix", key], ["window", window], ...(tz ? [["tz", tz]] : [])],
    )).totals.map((t) => ({ ...t, key, tz, of: "prefix" }))),
  ]);
  const totals = answers.flatMap(({ value }) => value ?? []);
  states.forEach((s, i) => {
    const total = totals.find(({ key, of, window, tz }) =>
      key === s.key && of === s.of && window === s.window && tz === s.tz);
    if (!total) return;
    put(cells[i], inLine(total));
    cells[i].title = describe(total, gapOf(total)).sentences.join(" ");
  });
}

function drawChanges({ changes, next }) {
  keep($("alerts-changes"), [changes, Math.floor(clock.now() / 600_000)], () => changes.map((c) => el("li", {},
    el(
      "time",
      { class: "note", datetime: c.at, title: inFull(Date.parse(c.at)) },
      moment(Date.parse(c.at), clock.now()),
    ),
    words(c.state),
    el(
      "span",
      {},
      el("bdi", {}, `${apart(c.rule)}, ${c.key === "" ? "all keys" : apart(c.key)}`),
      el(
        "span",
        { class: "under" },
        c.reason ?? `${hits(c)} in ${spoken(c.window)}, ${bounds(c)}`,
        c.quiet ? "; no target was notified" : null,
        ...(c.given_up ?? []).map((g) => `; given up for ${g.target}: ${g.reason}`),
      ),
    ))));
  const box = $("alerts-pages");
  if (box.childElementCount === 0) {
    box.append(
      el("button", { type: "button", class: "button", onclick: () => turn(state, pages.slice(0, -1)) }, "Newer"),
      el(
        "button",
        { type: "button", class: "button", onclick: () => turn(state, [...pages, [["before", box.dataset.next]]]) },
        "Older",
      ),
      el("span", { class: "note" }),
    );
  }
  const [newer, older, note] = box.children, focused = document.activeElement;
  box.dataset.next = next ?? "";
  newer.disabled = pages.length === 1;
  older.disabled = !next;
  if (focused === newer && newer.disabled) older.focus();
  if (focused === older && older.disabled) newer.focus();
  put(note, changes.length === 0 ? "No others." : `Page ${pages.length}`);
}
