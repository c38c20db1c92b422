// Alerts: what the rules of watch say now, and how that has changed.
import { $, el, put, repeat } from "./dom.js";
import { ago, apart, inFull, moment, number, sentence, shown, spoken } from "./format.js";
import { ask, askOrLast, clock, post } from "./api.js";
import { describe, gapOf, inLine } from "./figure.js";
import { drawPages, keep, needsNATS, snippet, words } from "./pieces.js";
import { drawRule, levels, timeline } from "./rule.js";
import { partsOf } from "./tree.js";

// changes of a page; states whose total now is read; seconds without an evaluation that are too many
const listed = 20, mostNow = 50, stale = 10;
const kinds = ["firing", "unknown", "pending", "resolved", "ok"];
const idOf = ({ rule, key }) => `${rule} ${key}`; // no rule has a space in its name
let past = { of: -1, since: 0, changes: new Map() }; // the last day's changes, by rule and key, the newest first
let standing = new Map(), chosen = ""; // states by rule and key, and the one that the chart is of
let chart = () => {};
let state = "", pages = [[]]; // of each page that the reader has turned to, the parameters
let again = () => {};

export function start() {
  again = repeat(load, "alerts");
  chart = repeat(async () => {
    const s = standing.get(chosen), id = chosen;
    if (s) await drawRule(s, () => id === chosen);
    return 15;
  }, "alerts");
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width === width) return;
    width = contentRect.width;
    chart();
  }).observe($("alert-chart"));
}

async function load() {
  const asked = [state, pages.length].join();
  try {
    const [all, some] = await Promise.all([
      askOrLast("v1/watch", [["limit", 1]]),
      askOrLast("v1/watch", [["limit", listed], ...(state ? [["state", state]] : []), ...pages.at(-1)]),
    ]);
    if (asked !== [state, pages.length].join()) return 0; // the reader has turned the page meanwhile
    const newest = all.changes[0]?.position ?? 0;
    if (newest !== past.of) past = await lastDay(newest);
    draw(all, some);
  } catch (error) {
    return fail(error);
  }
  return 3;
}

// lastDay asks for the changes of the last day: all of them, unless there were more than one answer has.
async function lastDay(of) {
  const { changes: list, next } = await askOrLast("v1/watch", [["limit", 1000]]), from = clock.now() - 86_400_000;
  return {
    of,
    since: next ? Date.parse(list.at(-1).at) : 0,
    changes: Map.groupBy(list.filter(({ at }) => Date.parse(at) > from), idOf),
  };
}

function fail(error) {
  $("alerts-parts").hidden = true;
  put($("alerts-note"), "");
  const needs = error.status === 501;
  showTrouble(
    needs ? "" : `${sentence(error.message)} This view comes back by itself.`,
    needs ? [needsNATS("watch", "rules and their states")] : [],
  );
  return needs ? 60 : 5;
}

// showTrouble shows what is wrong, or what is missing.
function showTrouble(text, missing = []) {
  const box = $("alerts-trouble");
  keep(box, [text, missing.length], () => [text, ...missing]);
  box.classList.toggle("bad", text !== "" && missing.length === 0);
}

const example = `targets: {bus: {nats: tallyroll.alert}}
rules:
  - {name: errors, key: http.5xx, window: 5m, above: 100, to: [bus]}`;

function draw(all, some) {
  const evaluated = Date.parse(all.evaluated_at ?? "");
  const age = (clock.now() - evaluated) / 1000;
  const never = Number.isNaN(evaluated);
  const old = !never && age > stale;
  put($("alerts-note"), never || old ? "" : `Evaluated at ${moment(evaluated, clock.now())}`);
  if (never) {
    showTrouble("No rules are watched. Write a file of rules, such as watch.yml, and start watch with it:", [
      snippet(example),
      snippet("WATCH_FILE=watch.yml watch"),
    ]);
  } else {
    $("alerts-parts").classList.toggle("stale", Boolean(all.stale) || old);
    const why = all.stale ? all.stale.message : `No evaluation for ${ago(age)}: no watch runs, or NATS is away`;
    showTrouble(all.stale || old ? `${sentence(why)} These states are of ${moment(evaluated, clock.now())}.` : "");
  }
  $("alerts-parts").hidden = never;
  if (never) return;
  standing = new Map(some.states.map((s) => [idOf(s), s]));
  drawKinds(all.counts);
  drawStates(some.states);
  readNow(some.states);
  drawChanges(some);
}

// choose shows the chart of a state; again, it hides it.
function choose(s) {
  chosen = chosen === idOf(s) ? "" : idOf(s);
  for (const pick of $("alerts-rows").querySelectorAll("button")) {
    pick.setAttribute("aria-pressed", pick.dataset.id === chosen);
  }
  $("alert-chart").hidden = chosen === "";
  put($("alert-title"), `${apart(s.rule)}, ${keyOf(s)}`);
  $("alert-plot").replaceChildren();
  put($("alert-note"), "");
  chart();
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
    const n = name ? counts[name] ?? 0 : total;
    input.parentNode.toggleAttribute("data-none", n === 0 && name !== "");
    put(input.nextSibling, `${name || "all"} ${number(n)}`);
  }
}

// turn shows other states or changes.
function turn(to, through) {
  state = to;
  pages = through;
  again();
}

// isOfRule reports whether a state is about all keys of a rule, and so about no one number.
const isOfRule = ({ key, of }) => key === "" && of !== "all";
const hits = (s) => (s.total === null ? "unknown" : number(s.total));
const bounds = (s) => (s.total === null ? "it could not be read" : describe(s).note);
const keyOf = ({ key, of }, write = apart) => key !== "" ? write(key) : of === "all" ? "all hits" : "all keys";

function drawStates(states) {
  const now = clock.now(), part = Math.floor(now / 600_000); // bars go on every ten minutes
  const of = [past.of, part, states.map((s) => ({ ...s, as_of: 0, at: 0 }))];
  keep($("alerts-rows"), of, () => states.map((s) => el("tr", {},
    el(
      "th",
      { scope: "row" },
      el(
        "button",
        {
          type: "button",
          class: "pick",
          "data-id": idOf(s),
          "aria-pressed": String(idOf(s) === chosen),
          onclick: () => choose(s),
        },
        el("bdi", {}, shown(s.rule)),
      ),
      el(
        "span",
        { class: "under" },
        el("bdi", {}, keyOf(s, shown)),
        s.condition ? ` ${s.condition} in ${spoken(s.window)}` : null,
      ),
    ),
    el(
      "td",
      { "data-wide": "" },
      words(levels[s.state], s.state),
      s.reason ? el("span", { class: "under" }, s.reason) : null,
    ),
    el("td", { "data-wide": "" }, timeline(s, past.changes.get(idOf(s)) ?? [], past.since, now)),
    el("td", { "data-name": "Since", title: inFull(Date.parse(s.since)) }, moment(Date.parse(s.since), clock.now())),
    el(
      "td",
      { class: "number", "data-name": "Hits then", title: isOfRule(s) ? "" : `${bounds(s)}, when the state began` },
      ...(isOfRule(s) ? [] : [hits(s), el("span", { class: "under" }, `in ${spoken(s.window)}`)]),
    ),
    el("td", { class: "number", "data-name": "Now" }))));
  $("alerts-table").hidden = states.length === 0;
  put($("alerts-none"), states.length > 0 ? "" : state ? `Nothing is ${state}.` : "No rule has a state yet.");
}

// readNow shows the total of the first states' keys now, because the one that a state has is of the moment
// when it began. It asks once for all counters of a window, and once for all groups of a rule.
async function readNow(states) {
  // others may stand there when the answers come
  const cells = [...$("alerts-rows").children].map((row) => row.lastElementChild);
  const asked = states.slice(0, mostNow).filter((s) => s.condition && !s.limit && !isOfRule(s));
  const together = (of, by) => Object.values(Object.groupBy(asked.filter((s) => s.of === of), by));
  const totals = async ({ window, tz }, params) =>
    (await ask("v1/total", [...params, ["window", window], ...(tz ? [["tz", tz]] : [])])).totals;
  const answers = await Promise.allSettled([ // if a token may not ask, cells stay empty
    ...together(undefined, ({ window, tz }) => `${window} ${tz}`).map(async (of) => {
      const [{ window, tz }] = of;
      const question = { keys: [...new Set(of.map(({ key }) => key))], windows: [window], tz };
      return (await post("v1/total", question)).totals.map((t) => ({ ...t, tz }));
    }),
    ...asked.filter(({ of }) => of === "prefix" || of === "all").map(async (s) =>
      (await totals(s, [["prefix", s.key]])).map((t) => ({ ...t, key: s.key, tz: s.tz, of: s.of }))),
    ...together("group", ({ rule }) => rule).map(async (of) => {
      const [s] = of, params = [["prefix", beginning(of.map(({ key }) => key))], ["group", partsOf(s.key)]];
      const [all] = await totals(s, params);
      return all.groups.map((g) => ({ ...all, ...g, key: g.group, tz: s.tz, of: "group" }));
    }),
  ]);
  const found = answers.flatMap(({ value }) => value ?? []);
  states.forEach((s, i) => {
    const total = found.find(({ key, of, window, tz }) =>
      key === s.key && of === s.of && window === s.window && tz === s.tz);
    if (!total) return;
    put(cells[i], inLine(total));
    cells[i].title = describe(total, gapOf(total)).sentences.join(" ");
  });
}

// beginning is what names have in common.
function beginning([first, ...others]) {
  let text = Array.from(first);
  for (const other of others) {
    const letters = Array.from(other), end = text.findIndex((letter, i) => letter !== letters[i]);
    if (end >= 0) text = text.slice(0, end);
  }
  return text.join("");
}

function drawChanges({ changes, next }) {
  keep($("alerts-changes"), [changes, Math.floor(clock.now() / 600_000)], () => changes.map((c) => el("li", {},
    el(
      "time",
      { class: "note", datetime: c.at, title: inFull(Date.parse(c.at)) },
      moment(Date.parse(c.at), clock.now()),
    ),
    words(levels[c.state], c.state),
    el(
      "span",
      {},
      el("bdi", {}, `${apart(c.rule)}, ${keyOf(c)}`),
      el(
        "span",
        { class: "under" },
        c.reason ?? (isOfRule(c) ? "every key is known" : `${hits(c)} in ${spoken(c.window)}, ${bounds(c)}`),
        c.quiet ? "; no target was notified" : null,
        ...(c.given_up ?? []).map((g) => `; given up for ${g.target}: ${g.reason}`),
      ),
    ))));
  const text = changes.length === 0 ? "No others." : `Page ${pages.length}`;
  drawPages($("alerts-pages"), pages, next, (to) => turn(state, to), text);
}
