// For those who operate Tallyroll: whether the streams are counted and by whom, and what was refused and how it
// counts after all.
import { $, el, put, repeat } from "./dom.js";
import { ago, apart, atMinute, compact, count, inFull, moment, number, sentence, shown } from "./format.js";
import { ask, askOrLast, clock, soon } from "./api.js";
import { sparkline } from "./plot.js";
import { bars, drawPages, keep, needsNATS, snippet, words } from "./pieces.js";

const listed = 10, hoursShown = 24, hour = 3_600_000;
const open = new Set(); // the rejects whose bodies the reader samples at, by position
let reason = "", pages = [[]]; // of each page that the reader has turned to, the parameters
let namespace, again;

export function start() {
  again = repeat(load, "operate");
}

// load asks for streams and rejects. What a server that is away answered last is shown in grey.
async function load() {
  const asked = [reason, pages.length].join();
  const [about, fleet, refused] = await Promise.allSettled([
    namespace ?? ask("v1/about").then((found) => found.namespace),
    askOrLast("v1/streams", [], soon()),
    askOrLast("v1/rejects", [["limit", listed], ...(reason ? [["reason", reason]] : []), ...pages.at(-1)], soon()),
  ]);
  if (asked !== [reason, pages.length].join()) return 0; // the reader has turned the page meanwhile
  if (fleet.reason && refused.reason) return fail(fleet.reason);
  namespace = about.value ?? namespace;
  $("operate-parts").hidden = false;
  const errors = [fleet, refused].flatMap(({ reason: error, value }) => error ?? value.stale ?? []);
  const redisAway = fleet.value?.stale ? [] : fleet.value?.redis ?? []; // an old answer knows nothing of now
  showTrouble([...new Set(errors.map(({ message }) => message).concat(redisAway))]);
  if (fleet.value) {
    const { as_of: asOf, redis, stale } = fleet.value, at = moment(Date.parse(asOf), clock.now());
    const without = redis ? ", without Redis: waiting is counted from its last answer" : "";
    put($("operate-note"), stale ? `Last known at ${at}` : `As of ${at}${without}`);
    grey("streams", stale ?? redis);
    grey("workers", stale);
    remember(fleet.value);
    drawStreams(fleet.value);
    drawWorkers(fleet.value);
  }
  grey("rejects", refused.reason ?? refused.value.stale);
  if (refused.value) drawRejects(refused.value);
  return 3;
}

const grey = (id, stale) => $(id).classList.toggle("stale", Boolean(stale));

function showTrouble(texts) {
  const box = $("operate-trouble");
  const all = texts.length > 0 ? [...texts.map(sentence), "This view comes back by itself."].join(" ") : "";
  keep(box, all, () => (all ? [el("p", { class: "note bad" }, all)] : []));
}

// Samples of the streams: lag, and messages per second since the sample before.
const mostSamples = 60, samples = new Map();
function remember({ streams, as_of: asOf }) {
  const t = Date.parse(asOf);
  for (const { stream, lag_messages: lag, last_sequence: last } of streams) {
    if (!samples.has(stream)) samples.set(stream, []);
    const list = samples.get(stream), before = list.at(-1);
    if (before?.t >= t) continue;
    const rate = before && last >= before.last ? (last - before.last) / ((t - before.t) / 1000) : undefined;
    list.push({ t, lag, last, rate });
    if (list.length > mostSamples) list.shift();
  }
}

// small is a drawing of a number in the samples of a stream, with the newest one.
function small(stream, name, text) {
  const list = (samples.get(stream) ?? []).filter((sample) => sample[name] !== undefined);
  if (list.length < 2) return text;
  const points = list.map((sample) => [sample.t, sample[name]]), end = list.at(-1).t + 3000;
  return el("span", { class: "small" }, sparkline({ points, step: "3s" }, end - mostSamples * 3000, end), text);
}

function fail(error) {
  put($("operate-note"), "");
  if (error.status !== 501) {
    $("operate-parts").hidden = true; // nothing is known, or the token may not
    showTrouble([error.message]);
    return 5;
  }
  $("operate-parts").hidden = true;
  keep($("operate-trouble"), 501, () => [needsNATS("workers", "streams, workers and refused hits")]);
  return 60;
}

// stateOf returns the state of a stream: a colour, and a few words. Without a server, it has no colour.
function stateOf(stream, { as_of: at, redis, stale }) {
  const asOf = Date.parse(stream.as_of), late = Math.max(stream.lag_seconds, asOf && (Date.parse(at) - asOf) / 1000);
  if (!stream.exists) return ["", "gone from NATS"];
  if (redis || stale) return ["", asOf ? `counted up to ${moment(asOf, clock.now())}` : "not counted yet"];
  if (!stream.worker) return ["red", "no worker reads it"];
  if (late <= 5) return ["green", "keeping up"];
  return [late > 30 ? "red" : "amber", `${ago(late)} behind`];
}

const table = (id, columns, rows) => el("table", { class: "states", "aria-labelledby": id },
  el("thead", {}, el("tr", {}, ...columns.map(([text, kind]) => el("th", { scope: "col", class: kind }, text)))),
  el("tbody", {}, ...rows));

function drawStreams(fleet) {
  const { streams, workers } = fleet;
  if (streams.length === 0) {
    $("streams").replaceChildren(
      el("p", { class: "note" }, "There are no streams of hits yet. A worker makes one when it starts."),
    );
    return;
  }
  const leaving = new Set(workers.filter((w) => w.leaving).map((w) => w.worker));
  $("streams").replaceChildren(
    table(
      "streams-title",
      [["Stream"], ["State"], ["Worker"], ["Stored per s", "number"], ["Waiting", "number"], ["Refused", "number"]],
      streams.map((s) => el(
        "tr",
        {},
        el("th", { scope: "row" }, el("bdi", {}, shown(s.stream))),
        el(
          "td",
          { "data-wide": "" },
          words(...stateOf(s, fleet)),
          s.exists ? null : el("span", { class: "under" }, "What was counted of it stays."),
        ),
        el(
          "td",
          { "data-name": "Worker" },
          s.worker ? el("bdi", {}, shown(s.worker)) : "–",
          leaving.has(s.worker) ? el("span", { class: "under" }, "is being stopped") : null,
        ),
        el("td", { class: "number", "data-name": "Stored per s" }, small(s.stream, "rate", rateOf(s.stream))),
        el(
          "td",
          {
            class: "number",
            "data-name": "Waiting",
            title: `sequence ${number(s.applied_sequence)} of ${number(s.last_sequence)} is applied`,
          },
          small(s.stream, "lag", s.lag_messages === 0 ? "none" : number(s.lag_messages)),
        ),
        el("td", { class: `number ${s.rejects > 0 ? "warn" : ""}`, "data-name": "Refused" }, number(s.rejects)),
      )),
    ),
  );
}

function rateOf(stream) {
  const rate = samples.get(stream)?.at(-1)?.rate;
  return rate === undefined ? "–" : rate < 10 ? String(Math.round(rate * 10) / 10) : compact(Math.round(rate));
}

function drawWorkers({ workers }) {
  if (workers.length === 0) {
    $("workers").replaceChildren(
      el(
        "p",
        { class: "note bad" },
        "No worker is alive: nothing is counted. Start ",
        el("code", {}, "ingest"),
        " with the NATS and the Redis of this service.",
      ),
    );
    return;
  }
  $("workers").replaceChildren(
    table(
      "workers-title",
      [["Worker"], ["Reads"], ["Running for"], ["Status at"]],
      workers.map((w) => el(
        "tr",
        {},
        el(
          "th",
          { scope: "row" },
          el("bdi", {}, shown(w.worker)),
          w.leaving ? el("span", { class: "under" }, "is being stopped") : null,
        ),
        el(
          "td",
          { "data-wide": "", title: w.streams.map(apart).join(", ") },
          w.streams.length === 0
            ? "no stream: it stands by"
            : w.streams.length <= 3 ? el("bdi", {}, w.streams.map(shown).join(", "))
            : count(w.streams.length, "stream"),
        ),
        el(
          "td",
          { "data-name": "Running for", title: inFull(Date.parse(w.started)) },
          ago((clock.now() - Date.parse(w.started)) / 1000),
        ),
        el(
          "td",
          { "data-name": "Status at", title: "It answers /readyz and /metrics here" },
          el("bdi", {}, shown(w.status) || "–"),
        ),
      )),
    ),
  );
}

function drawRejects(answer) {
  const none = answer.stored === 0;
  put(
    $("rejects-note"),
    none
      ? "None. Every hit could be counted."
      : answer.searched < answer.stored ? `${number(answer.stored)}; here are the newest ${number(answer.searched)}`
      : `${number(answer.stored)} in all`,
  );
  for (const id of ["rejects-reasons", "rejects-again", "rejects-hours", "rejects-list", "rejects-pages"]) {
    $(id).hidden = none;
  }
  if (none) return;
  drawReasons(answer.reasons);
  drawCommand();
  drawHours(answer);
  drawList(answer.rejects);
  showPages(answer);
}

function drawReasons(reasons) {
  const box = $("rejects-reasons");
  const all = [["", reasons.reduce((sum, r) => sum + r.count, 0)], ...reasons.map((r) => [r.reason, r.count])];
  if (reason && !reasons.some((r) => r.reason === reason)) all.push([reason, 0]);
  const names = all.map(([name]) => name).sort().join();
  if (box.dataset.of !== names) {
    const focused = box.contains(document.activeElement) ? document.activeElement.value : undefined;
    box.dataset.of = names;
    box.replaceChildren(box.querySelector("legend"), ...all.map(([name]) => {
      const input = el("input", {
        type: "radio",
        name: "reason",
        value: name,
        checked: name === reason,
        onchange: () => turn(name, [[]]),
      });
      return el("label", {}, input, el("span", {}));
    }));
    if (focused !== undefined) box.querySelector(`input[value="${focused}"]`)?.focus();
  }
  for (const [name, n] of all) {
    put(box.querySelector(`input[value="${name}"] + span`), `${name || "all"} ${compact(n)}`);
  }
}

// turn shows other rejects.
function turn(to, through) {
  reason = to;
  pages = through;
  again();
}

// remedies are how redrive sends the rejects of a reason, and what comes of it.
const remedies = {
  "": [
    "--ts now",
    "They count when they are stored again. It leaves those that would be refused again: bad_json, bad_field, " +
      "bad_key, bad_count and bad_unique.",
  ],
  too_late: [
    "--reason too_late --ts now",
    "They count when they are stored again. With --ts stored they count when they were refused, if a tier still " +
      "holds that time.",
  ],
  future: ["--reason future --ts stored", "They count at the time at which they were refused."],
  bad_time: ["--reason bad_time --ts stored", "They count at the time at which they were refused."],
  too_large: ["--reason too_large", "It splits the messages."],
  no_rule: ["--reason no_rule", "Begin once every worker has a rule for them."],
};
const hopeless = (name) => [
  `--reason ${name}`,
  "Workers refuse them again, unless a newer ingest takes them: correct the producer, and publish them again.",
];

const flags = () => remedies[reason] ?? hopeless(reason);
const command = (more = "") =>
  `${!namespace || namespace === "tallyroll" ? "" : `TALLYROLL_NAMESPACE=${namespace} `}redrive ${more}${flags()[0]}`;

function drawCommand() {
  keep($("rejects-again"), command(), () => [
    el("h3", {}, "Send them again"),
    snippet(command(), "redrive"),
    el(
      "p",
      { class: "note" },
      `${flags()[1]} Each counts once, however often you run it. `,
      el("code", {}, "--dry-run"),
      " lists what would be sent, and sends nothing. It needs the ",
      el("code", {}, "NATS_URL"),
      " of your workers.",
    ),
  ]);
}

function drawHours({ hours, stored, searched }) {
  const counted = new Map(hours.map((h) => [Date.parse(h.hour), h.count]));
  const last = Math.floor(clock.now() / hour) * hour;
  const all = Array.from({ length: hoursShown }, (_, i) => last - (hoursShown - 1 - i) * hour);
  const numbers = all.map((t) => counted.get(t) ?? 0);
  const most = Math.max(...numbers);
  const sum = numbers.reduce((a, b) => a + b, 0);
  const peak = most > 0 ? `, most at ${atMinute(all[numbers.indexOf(most)])} with ${number(most)}` : "";
  const text = `${number(sum)} in the last 24 hours`, newest = searched < stored ? ", of the newest" : "";
  keep($("rejects-hours"), [last, numbers, newest], () => [
    el("h3", {}, "Refused per hour ", el("span", { class: "note" }, `${text}${newest}${peak}`)),
    ...bars(`Refused per hour: ${text}${peak}`, all.map((t, i) => ({
      t,
      title: `${atMinute(t)} to ${atMinute(t + hour)}: ${number(numbers[i])}`,
      parts: [[numbers[i], "refused"]],
    }))),
  ]);
}

function drawList(rejects) {
  keep($("rejects-list"), [reason, rejects], () => [
    ...rejects.map((r) => el(
      "details",
      {
        open: open.has(r.position),
        ontoggle: (event) => (event.target.open ? open.add(r.position) : open.delete(r.position)),
      },
      el(
        "summary",
        { "data-id": r.position },
        el("code", {}, r.reason),
        " ",
        el("bdi", { class: "detail" }, shown(r.detail)),
        el("time", { class: "note", datetime: r.time }, moment(Date.parse(r.time), clock.now())),
      ),
      el(
        "p",
        { class: "note" },
        `${apart(r.stream)}, sequence ${number(r.sequence)}, hit ${r.item}; ${count(r.bytes, "byte")}`,
        r.bytes > 512 ? ", of which these are the first" : "",
      ),
      el("pre", { tabindex: "0" }, el("code", {}, shown(r.body) || "(an empty body)")),
    )),
    ...(rejects.length === 0 ? [el("p", { class: "note" }, "No others.")] : []),
  ]);
}

function showPages({ rejects, searched, stored }) {
  const end = rejects.length < listed, only = "Only the newest 1,000 are listed here: redrive --dry-run lists others.";
  const text = end && searched < stored ? only : `Page ${pages.length}`;
  $("rejects-pages").hidden = pages.length === 1 && end;
  drawPages($("rejects-pages"), pages, end ? "" : rejects.at(-1).position, (to) => turn(reason, to), text);
}
