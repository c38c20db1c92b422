// The live connection: one for all counters and windows, because a browser opens six at most.
// It is a fetch, not an EventSource, which could not send a token.
import { call, ask, clock, Problem } from "./api.js";
import { away } from "./dom.js";

const heartbeat = 35_000; // the service sends something every 15 seconds
const longest = 15; // seconds between two attempts

let current; // the AbortController of the connection that counts
let attempts = 0, wake = () => {};

let keys = [], windows = []; // what is asked about

// connect listens to counters in windows until connect is called again. hear gets total, asOf, problem and state.
export async function connect(hear, about = { keys, windows }) {
  ({ keys, windows } = about);
  current?.abort();
  wake();
  attempts = 0;
  const mine = (current = new AbortController());
  while (!mine.signal.aborted) {
    if (away("any") || keys.length === 0) return; // it connects again when the tab is shown again
    try {
      await listen(mine.signal, hear);
      throw new Problem(0, "The live connection has ended.");
    } catch (error) {
      if (mine.signal.aborted) return;
      const wait = Math.min(longest, 2 ** attempts++) * (0.75 + Math.random() / 2);
      const asked = error.status === 503 && (await askOnce(hear));
      if (mine.signal.aborted) return;
      hear.state(asked ? "asking" : "lost", error, wait);
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, wait * 1000);
      });
    }
  }
}

// reconnect does not wait for the next attempt.
export const reconnect = () => wake();

export function disconnect() {
  current?.abort();
  current = undefined;
}

function questions() {
  return [...keys.map((key) => ["key", key]), ...windows.map((length) => ["window", length])];
}

async function listen(outer, hear) {
  const silence = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), heartbeat);
  };
  const giveUp = () => silence.abort();
  outer.addEventListener("abort", giveUp);
  try {
    heard();
    const response = await call("v1/live", [...questions(), ["as_of", "true"]], { signal: silence.signal });
    attempts = 0;
    hear.state("live");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) tell(event, hear);
    }
  } catch (error) {
    throw error instanceof Problem ? error : new Problem(0, "The live connection is lost.");
  } finally {
    clearTimeout(timer);
    outer.removeEventListener("abort", giveUp);
    silence.abort();
  }
}

function tell(event, hear) {
  const fields = {};
  for (const line of event.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  if (!fields.data) return;
  const data = JSON.parse(fields.data);
  if (fields.event === "total") hear.total(data);
  if (fields.event === "problem") hear.problem(data);
  if (fields.event === "as_of") {
    clock.set(Date.parse(data.now), true);
    hear.asOf(Date.parse(data.as_of));
  }
}

// askOnce gets the totals without a live connection, for when there is no room for one.
async function askOnce(hear) {
  try {
    const answer = await ask("v1/total", questions());
    answer.totals.forEach(hear.total);
    if (answer.totals.length > 0) clock.set(Date.parse(answer.totals[0].to), true);
    hear.asOf(Date.parse(answer.as_of));
    return true;
  } catch {
    return false;
  }
}
