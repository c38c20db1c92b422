// Limits: what is decided under each, who is refused, and how much of a limit one key has used.
import { $, el, put, repeat, say } from "./dom.js";
import { ago, apart, compact, moment, number, sentence, shown, spoken } from "./format.js";
import { ask, call, clock } from "./api.js";
import { drawHistory } from "./history.js";
import { keep, snippet } from "./pieces.js";

const fails = { local: "this process decides alone", open: "everything is allowed", closed: "everything is refused" };

let limits = new Map(); // by name, as the service answered
let chosen = new URLSearchParams(location.search).get("limit") ?? "";
let asked; // the values of the key that is looked at: by variable
let counts = false, resetting = false;
const processes = new Set();
const rows = new Map();
let again = () => {}, look = () => {}, past = () => {}; // ask at once

export function start() {
  again = repeat(load, "limits");
  look = repeat(() => (asked ? drawUse() : 3600), "limits");
  past = repeat(async () => {
    if (limits.has(chosen)) await drawHistory($("limit-history"), limits.get(chosen));
    return 10;
  }, "limits");
  $("use-form").addEventListener("submit", (event) => {
    event.preventDefault();
    lookAt(
      Object.fromEntries([...$("use-fields").querySelectorAll("input")].map((input) => [input.name, input.value])),
    );
  });
}

async function load() {
  try {
    const all = await ask("v1/limits");
    all.limits.sort((a, b) => refusedOf(b) - refusedOf(a)); // the order of names stays among the others
    limits = new Map(all.limits.map((limit) => [limit.limit, limit]));
    if (!limits.has(chosen)) choose(all.limits[0]?.limit ?? "", false);
    draw(all);
  } catch (error) {
    showNote(`${sentence(error.message)} This view comes back by itself.`);
    $("limits-note").classList.add("bad");
    if (error.status === 403) $("limits-table").hidden = $("limit-split").hidden = true; // the token may not
    return 5;
  }
  return 2;
}

const showNote = (text) => keep($("limits-note"), text, () => [text]);

const refusedOf = (limit) => limit.refused + limit.would_refuse;

function draw(all) {
  processes.add(all.process);
  counts = all.counts;
  put($("limits-process"), processes.size > 1
    ? `Numbers are of process ${all.process}, one of ${processes.size} that answer here in turn: each has its own.`
    : `Numbers are of one process of query, ${all.process}.`);
  $("limits-note").classList.remove("bad");
  const none = limits.size === 0;
  $("limits-table").hidden = $("limit-split").hidden = none;
  if (none) {
    keep($("limits-note"), 0, () => [
      el("p", {}, "No limit has a name yet. Write a file of limits, such as limits.yml:"),
      snippet('limits:\n  - {name: login, window: 1h, max: 5, policy: log}'),
      el("p", {}, "Start ", el("code", {}, "query"), " with it. POST /v1/take then decides under them:"),
      snippet("QUERY_LIMITS_FILE=limits.yml query"),
    ]);
    return;
  }
  showNote(
    counts ? "" : "This service counts no takes (QUERY_TAKE=off): it only looks at limits, and resets none.",
  );
  drawRows();
  drawForm(limits.get(chosen));
  if ($("limit-history").dataset.limit !== chosen) {
    $("limit-history").dataset.limit = chosen;
    past();
  }
}

const room = (limit) => limit.unlimited
  ? "any number"
  : `${number(limit.max)} ${limit.slots ? "at once" : `in ${spoken(limit.window)}`}`;

// rate is a number per second as it is read at a glance.
const rate = (n) => (n === 0 ? "0" : n < 0.05 ? "< 0.1" : n < 100 ? n.toFixed(1) : compact(Math.round(n)));

function drawRows() {
  for (const [name, row] of rows) {
    if (!limits.has(name)) {
      row.node.remove();
      rows.delete(name);
    }
  }
  const box = $("limits-rows"), held = box.contains(document.activeElement);
  [...limits.values()].forEach((limit, i) => {
    const row = rows.get(limit.limit) ?? makeRow(limit.limit);
    if (!held && box.children[i] !== row.node) box.insertBefore(row.node, box.children[i]);
    const shadow = limit.mode === "shadow" ? ", shadow: refuses nothing" : "";
    const shares = limit.share ? `, shares of ${number(limit.share.hits)}` : "";
    put(row.allows, `${room(limit)}${shadow}${shares}`);
    put(row.fields[0], rate(limit.allowed_per_second));
    put(row.fields[1], rate(limit.refused_per_second + limit.would_refuse_per_second));
    row.fields[1].classList.toggle("bad", limit.refused_per_second > 0);
    [limit.allowed, refusedOf(limit), limit.failed].forEach((n, i) => {
      put(row.fields[i + 2], compact(n));
      row.fields[i + 2].title = `${number(n)} since ${moment(Date.parse(limit.since), clock.now())}`;
    });
    row.fields[4].classList.toggle("bad", limit.failed > 0);
    row.pick.setAttribute("aria-pressed", limit.limit === chosen);
  });
}

function makeRow(name) {
  const pick = el("button", { type: "button", class: "pick" }, el("bdi", {}, name));
  const allows = el("td", { "data-wide": "" });
  const fields = [
    "Allowed per s",
    "Refused per s",
    "Allowed",
    "Refused",
    "Not decided",
  ].map((text) => el("td", { class: "number", "data-name": text }));
  const node = el("tr", { onclick: () => choose(name) }, el("th", { scope: "row" }, pick), allows, ...fields);
  $("limits-rows").append(node);
  const row = { node, pick, allows, fields };
  rows.set(name, row);
  return row;
}

function choose(name, byReader = true) {
  if (name === chosen && byReader) return;
  chosen = name;
  asked = undefined;
  $("use-found").replaceChildren();
  if (!byReader) return;
  const params = new URLSearchParams(location.search);
  params.set("limit", name);
  history.replaceState(null, "", `?${params}`);
  for (const [other, row] of rows) row.pick.setAttribute("aria-pressed", other === name);
  again();
}

// drawForm describes the chosen limit, and has the fields by which a key of it is looked at.
function drawForm(limit) {
  const inAdvance = limit.share ? ` Each process takes up to ${number(limit.share.hits)} hits in advance.` : "";
  const each = limit.variables.map((name) => labelOf(name).toLowerCase()).join(" and ");
  put(
    $("use-about"),
    `${limit.limit} allows ${room(limit)} to each ${each}. Hits are kept ${limit.kept}. ` +
      `Without Redis, ${fails[limit.fail]}.${inAdvance}`,
  );
  const box = $("use-fields"), names = `${limit.limit} ${limit.variables.join()}`;
  if (box.dataset.of === names) return; // the reader may be typing
  box.dataset.of = names;
  const plain = { required: true, maxlength: 512, autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
  box.replaceChildren(...limit.variables.map((name) =>
    el("label", {}, labelOf(name), el("input", { name, ...plain }))));
}

const labels = { key: "Key", ip: "Address", method: "Method", host: "Host", path: "Path" };
const labelOf = (variable) => labels[variable] ?? `Header ${variable.slice("header.".length)}`;

function lookAt(values) {
  asked = values;
  resetting = false;
  for (const input of $("use-fields").querySelectorAll("input")) input.value = values[input.name] ?? "";
  look();
}

const question = () => [["limit", chosen], ...Object.entries(asked)];
const keyOf = (values) => Object.values(values).join(" ");

async function drawUse() {
  const values = asked, limit = limits.get(chosen);
  if (!limit) return 1;
  try {
    const answer = await ask("v1/limit", question());
    if (values === asked && !resetting) showUse(limit, values, answer);
  } catch (error) {
    if (values === asked) {
      $("use-found").replaceChildren(el("p", { class: "note bad", role: "alert" }, sentence(error.message)));
    }
    return error.status === 400 ? 3600 : 5;
  }
  return 2;
}

function showUse(limit, values, answer) {
  const box = $("use-found"), used = Math.max(0, limit.max - answer.remaining), name = keyOf(values);
  const text = limit.unlimited
    ? "Unlimited: nothing is counted"
    : `${number(used)} of ${number(limit.max)} used, ${number(answer.remaining)} left`;
  const fits = answer.would_allow ?? answer.allowed, hit = limit.slots ? "place" : "hit";
  const next = fits
    ? `The next ${hit} is allowed.`
    : answer.shadow ? `The next ${hit} is too many. In shadow mode it is allowed, and not counted.`
    : limit.max === 0 ? `The next ${hit} is refused: this limit refuses always.`
    : `The next ${hit} is refused. It is allowed in ${ago(answer.retry_after)} if nothing else comes.`;
  const margin = answer.certain
    ? ""
    : answer.source === "local" ? " Redis does not answer: this is the count of one process."
    : " Hits of the oldest cell decide, so the opposite may be true.";
  if (box.dataset.of !== `${chosen} ${JSON.stringify(values)}` || !box.querySelector("[role=meter]")) {
    box.dataset.of = `${chosen} ${JSON.stringify(values)}`;
    box.replaceChildren(el("h3", {}, el("bdi", {}, shown(name))),
      el(
        "div",
        {
          class: "meter",
          role: "meter",
          "aria-label": `Use of ${apart(name)} under ${limit.limit}`,
          "aria-valuemin": 0,
        },
        el("span", {}),
      ),
      el("p", { class: "used" }), el("p", { class: "note", "data-part": "next" }),
      el("p", { id: "use-reset" }));
    if (counts) offerReset(name);
    say(`${name}: ${text}. ${next}`);
  }
  const meter = box.querySelector("[role=meter]");
  meter.setAttribute("aria-valuemax", limit.max);
  meter.setAttribute("aria-valuenow", Math.min(used, limit.max));
  meter.setAttribute("aria-valuetext", text);
  meter.dataset.state = fits ? (used > 0.8 * limit.max ? "amber" : "green") : "red";
  meter.firstChild.style.width = `${limit.max === 0 ? (fits ? 0 : 100) : Math.min(100, (100 * used) / limit.max)}%`;
  put(box.querySelector(".used"), text);
  put(box.querySelector("[data-part=next]"), next + margin);
}

function offerReset(name, focus = false) {
  resetting = false;
  const button = el("button", { type: "button", class: "button", onclick: () => confirmReset(name) }, "Reset…");
  $("use-reset")?.replaceChildren(button);
  if (focus) button.focus();
}

// confirmReset asks once more: what is forgotten does not come back.
function confirmReset(name) {
  const keep = el("button", { type: "button", class: "button", onclick: () => offerReset(name, true) }, "Keep them");
  const forget = el("button", { type: "button", class: "button red", onclick: () => reset(name) }, "Forget them");
  $("use-reset").replaceChildren(
    el(
      "span",
      {
        role: "group",
        "aria-label": "Confirm",
        onkeydown: (event) => { if (event.key === "Escape") offerReset(name, true); },
      },
      el("span", {}, "Forget all hits of ", el("bdi", {}, shown(name)), ` under ${chosen}?`),
      " ",
      forget,
      " ",
      keep,
    ),
  );
  keep.focus();
}

async function reset(name) {
  resetting = true;
  try {
    await call("v1/limit", question(), { method: "DELETE" });
    offerReset(name, true);
    $("use-reset").append(el("span", { class: "note" }, " Forgotten. Other processes can refuse for a second yet."));
    say(`The hits of ${name} are forgotten.`);
  } catch (error) {
    offerReset(name, true);
    $("use-reset").append(el("span", { class: "note bad", role: "alert" }, ` ${sentence(error.message)}`));
  }
  look();
}
