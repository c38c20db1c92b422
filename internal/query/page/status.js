// How fresh the numbers are, and what is wrong if something is.
import { $, away, put, say } from "./dom.js";
import { ago, apart, moment, sentence } from "./format.js";
import { ask, clock, soon, unbegun } from "./api.js";
import { reconnect } from "./live.js";

export const amber = 5; // seconds; from here on answers have no upper bound
const red = 30;

const state = { asOf: undefined, connection: "wait", problem: undefined, retryAt: 0, why: "" };

export const status = {
  // mayAsk is whether the reader may see the streams.
  mayAsk(may) {
    state.mayAsk = may;
  },
  asOf(moment) {
    state.asOf = moment;
    state.problem = undefined;
    draw();
  },
  // known is the moment of the numbers that are still shown.
  known(moment) {
    state.asOf ??= moment;
    draw();
  },
  problem(problem) {
    state.problem = problem;
    draw();
  },
  connection(name, error, wait) {
    state.connection = name;
    state.why = error?.message ?? "";
    state.status = error?.status;
    state.retryAt = performance.now() + (wait ?? 0) * 1000;
    if (name === "live") state.problem = undefined;
    draw();
  },
};

// The cause of late numbers: which stream is not counted. Who may not see the streams does without it.
const causeFor = 3000; // milliseconds until it is asked for again
let cause = "", causeAt = -Infinity;
async function findCause() {
  if (!state.mayAsk || performance.now() - causeAt < causeFor) return;
  causeAt = performance.now();
  const without = ({ message }) => (/^NATS/.test(message) ? "NATS is away" : "");
  cause = await ask("v1/streams", [], soon()).then(causeOf, without);
  draw();
}

// causeOf names the stream that is the furthest behind; one that no worker reads before all others.
function causeOf({ streams }) {
  const late = streams.filter(({ as_of: asOf }) => clock.now() - Date.parse(asOf) > amber * 1000)
    .sort((a, b) => Boolean(a.worker) - Boolean(b.worker) || Date.parse(a.as_of) - Date.parse(b.as_of));
  if (late.length === 0) return "";
  const [{ stream, worker }] = late, names = `${apart(stream)}${late.length > 1 ? ` and ${late.length - 1} more` : ""}`;
  return worker ? `${apart(worker)} is behind on ${names}` : `no worker reads ${names}`;
}

// judge returns what to show: a level, a few words for the corner, and a notice if there is something to do.
function judge() {
  const age = state.asOf === undefined ? undefined : Math.max(0, (clock.now() - state.asOf) / 1000);
  const whole = state.asOf > 0 ? moment(state.asOf, clock.now()) : "";
  const known = whole && ` The numbers are the last ones known, whole up to ${whole}.`;
  if (state.status === 403) {
    return { level: "wait", words: "Not for this token", title: "The service refuses.", text: sentence(state.why) };
  }
  const lost = state.connection === "lost";
  const trouble = lost ? { status: state.status, detail: state.why } : state.problem;
  if (trouble) {
    const left = Math.max(0, Math.ceil((state.retryAt - performance.now()) / 1000));
    const [title, why = title.slice(0, -1)] = unbegun(trouble.detail)
      ? ["Nothing is counted yet.", "nothing counted"]
      : trouble.status === 503 ? ["Redis is away."]
      : trouble.status ? ["The service refuses.", "refused"]
      : ["The live connection is lost.", "no connection"];
    const next = left > 0 ? ` Next attempt in ${left} s.` : " Trying now…";
    const text = `${trouble.status ? sentence(trouble.detail) : ""}${known}${lost ? next : ""}`;
    return { level: "red", words: `Not live · ${why}${whole && ` · numbers of ${whole}`}`, title, text, retry: lost };
  }
  if (age === undefined) return { level: "wait", words: "Connecting…" };
  if (state.asOf <= 0) {
    return {
      level: "amber",
      words: "Not counted yet",
      title: "A stream has not been counted yet.",
      text: "Totals lack its hits until a worker has begun with it.",
    };
  }
  if (age > amber) findCause();
  else cause = "";
  const words = `${age > amber ? "Not live" : "Live"} · ${ago(age)} behind${cause ? ` · ${cause}` : ""}`;
  if (age > red) {
    return {
      level: "red",
      words,
      title: "Counting has stopped.",
      text: `${sentence(cause)} Hits stored after ${moment(state.asOf, clock.now())} are not in these numbers. ` +
        "They count once a worker reads on: see Operate.",
    };
  }
  if (state.connection === "asking") {
    return {
      level: "amber",
      words,
      title: "No room for a live connection.",
      text: `The numbers come every few seconds. ${sentence(state.why)}`,
    };
  }
  return { level: age > amber ? "amber" : "green", words, late: age > amber };
}

let spoken = "";

export function draw() {
  const found = judge();
  $("fresh").dataset.state = found.level;
  document.body.dataset.state = found.level;
  put($("fresh-text"), found.words);
  $("fresh").title = found.words; // the names in it may be long
  const notice = $("notice");
  notice.hidden = !found.title;
  notice.dataset.level = found.level;
  put($("notice-title"), found.title ?? "");
  put($("notice-text"), found.text ?? "");
  $("notice-retry").hidden = !found.retry;
  // Only a change of the state is read out: the age changes all the time.
  const now = found.title ??
    (found.late ? "The numbers are late." : found.level === "wait" ? "" : "The numbers are fresh.");
  if (now !== spoken && (spoken !== "" || found.title)) say(now);
  spoken = now;
}

export function start() {
  $("notice-retry").addEventListener("click", reconnect);
  setInterval(() => { if (!away("any")) draw(); }, 250);
}
