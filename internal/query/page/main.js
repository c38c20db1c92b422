// The page: what the reader has chosen (view), the live connection, and the parts that show something.
import { $, repeat } from "./dom.js";
import { ask } from "./api.js";
import { view, topWindows, usual, offer, readAddress, change, onChange } from "./view.js";
import { connect, disconnect } from "./live.js";
import { status, start as startStatus } from "./status.js";
import * as totals from "./totals.js";
import * as picker from "./picker.js";
import * as chart from "./chart.js";
import * as trending from "./trending.js";
import * as fleet from "./fleet.js";

const atFirst = 3; // counters that are shown to a reader who has chosen none

const hear = {
  total: totals.show, asOf: status.asOf,
  problem(problem) {
    status.problem(problem);
    if (problem.status === 400) askAgain();
  },
  state(name, error, wait) {
    status.connection(name, error, wait);
    if (error?.status === 400) askAgain();
  },
};

let about; // what the service has told of itself

// askAgain begins anew if a question is refused because the tiers are others by now.
async function askAgain() {
  const now = await ask("v1/about").catch(() => about);
  if (JSON.stringify(now.tiers) !== JSON.stringify(about.tiers)) location.reload();
}

// reveal shows the numbers, or how to publish a first hit.
function reveal(numbers) {
  $("welcome").hidden = numbers;
  $("totals").hidden = $("split").hidden = !numbers;
}

// choose picks the busiest counters for a reader who has chosen none, or any if none is busy.
async function choose(busiest) {
  if (view.chosen || view.keys.length > 0) return;
  let keys = busiest.map(({ key }) => key).slice(0, atFirst);
  if (keys.length === 0) keys = (await ask("v1/counters", [["limit", atFirst]])).counters;
  reveal(keys.length > 0);
  if (keys.length > 0) change({ keys }, false);
}

// first asks for the busiest counters until there are some.
function first() {
  const wait = repeat(async () => {
    if (view.chosen || view.keys.length > 0) return 3600;
    try {
      const { top, as_of: asOf } = await ask("v1/top", [["window", usual(topWindows)], ["limit", atFirst]]);
      status.connection("live");
      status.asOf(Date.parse(asOf));
      await choose(top);
    } catch (error) {
      status.connection("lost", error, 2);
    }
    return view.keys.length > 0 ? 3600 : 1;
  });
  onChange((parts) => { if (parts.keys) wait(); });
}

// show shows all that depends on what can be asked here.
function show() {
  readAddress();
  totals.start();
  totals.layOut();
  if (view.chosen) reveal(true);
  onChange((parts) => {
    if (!parts.keys) {
      totals.note();
      return;
    }
    reveal(true);
    totals.layOut();
    connect(hear);
  });
  connect(hear);
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect(hear)));
  first();
  picker.start();
  chart.start();
  trending.start();
  fleet.start();
}

startStatus();
const begin = repeat(async () => {
  if (about) return 3600;
  try {
    about = await ask("v1/about");
  } catch (error) {
    status.connection("lost", error, 1);
    return 1;
  }
  offer(about);
  show();
  return 3600;
});
$("notice-retry").addEventListener("click", begin);
