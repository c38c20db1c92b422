// The fleet: how far each stream is counted and by whom, and what was refused.
import { $, el, put, repeat } from "./dom.js";
import { ago, count, number, moment, sentence, shown, apart } from "./format.js";
import { ask, clock } from "./api.js";

const listed = 5;
let open = new Set(); // the rejects whose bodies the reader looks at, by position

export const start = () => repeat(load);

async function load() {
  try {
    const [fleet, refused] = await Promise.all([ask("v1/streams"), ask("v1/rejects", [["limit", listed]])]);
    drawStreams(fleet);
    drawRejects(refused);
  } catch (error) {
    put($("fleet-workers"), "");
    $("fleet-rejects").replaceChildren();
    const text = error.status === 501
      ? ["This view needs NATS, and ", el("code", {}, "NATS_URL"), " of ", el("code", {}, "query"), " is set to nothing. Set it to see streams, workers and refused hits. All else works without it."]
      : [`${sentence(error.message)} The fleet view comes back by itself.`];
    $("fleet-streams").replaceChildren(el("p", { class: error.status === 501 ? "note" : "note bad" }, ...text));
    return error.status === 501 ? 60 : 5;
  }
  return 3;
}

function drawStreams({ streams, workers }) {
  put($("fleet-workers"), workers.length === 0 ? "no worker is alive" : count(workers.length, "worker"));
  $("fleet-workers").classList.toggle("bad", workers.length === 0);
  if (streams.length === 0) {
    $("fleet-streams").replaceChildren(el("p", { class: "note" }, "There are no streams of hits yet. A worker makes one when it starts."));
    return;
  }
  const leaving = new Set(workers.filter((w) => w.leaving).map((w) => w.worker));
  $("fleet-streams").replaceChildren(el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["Stream", "Worker", "Applied", "Lag", "Refused"].map((text, i) =>
      el("th", { scope: "col", class: i > 1 ? "number" : false }, text)))),
    el("tbody", {}, ...streams.map((s) => {
      const lag = s.lag_messages === 0 ? "none" : `${number(s.lag_messages)} · ${ago(s.lag_seconds)}`;
      const late = s.lag_seconds > 30 ? "bad" : s.lag_seconds > 5 ? "warn" : "";
      const worker = s.worker ? [el("bdi", {}, shown(s.worker)), leaving.has(s.worker) ? " (leaving)" : null] : [el("span", { class: s.exists ? "bad" : "" }, s.exists ? "nobody" : "–")];
      return el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, shown(s.stream)), s.exists ? null : el("span", { class: "note" }, " gone from NATS")),
        el("td", {}, ...worker), el("td", { class: "number" }, number(s.applied_sequence)),
        el("td", { class: `number ${late}` }, lag), el("td", { class: `number ${s.rejects > 0 ? "warn" : ""}` }, number(s.rejects)));
    })))));
}

function drawRejects({ stored, searched, reasons, rejects }) {
  const box = $("fleet-rejects");
  if (stored === 0) {
    box.replaceChildren(el("h3", {}, "Refused hits"), el("p", { class: "note" }, "None. Every hit could be counted."));
    return;
  }
  if (box.contains(document.activeElement) && box.dataset.stored === String(stored)) return; // leave the reader alone
  box.dataset.stored = stored;
  box.replaceChildren(el("h3", {}, "Refused hits ", el("span", { class: "note" }, searched < stored ? `newest ${number(searched)} of ${number(stored)}` : number(stored))),
    el("ul", { class: "reasons" }, ...reasons.map((r) => el("li", {}, el("code", {}, r.reason), ` ${number(r.count)}`))),
    ...rejects.map((r) => el("details", { open: open.has(r.position), ontoggle: (event) => (event.target.open ? open.add(r.position) : open.delete(r.position)) },
      el("summary", {}, el("code", {}, r.reason), " ", el("bdi", { class: "detail" }, shown(r.detail)), el("time", { class: "note", datetime: r.time }, moment(Date.parse(r.time), clock.now()))),
      el("p", { class: "note" }, `${apart(r.stream)}, sequence ${number(r.sequence)}, hit ${r.item}; ${count(r.bytes, "byte")}`),
      el("pre", { tabindex: "0" }, el("code", {}, shown(r.body) || "(an empty body)")))));
}
