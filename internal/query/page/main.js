// The page: what the reader has chosen (view), the live connection, and the parts that show something.
import { $, repeat } from "./dom.js";
import { ask } from "./api.js";
import { view, readAddress, change, onChange } from "./view.js";
import { connect, disconnect } from "./live.js";
import { status, start as startStatus } from "./status.js";
import * as totals from "./totals.js";
import * as picker from "./picker.js";
import * as chart from "./chart.js";
import * as trending from "./trending.js";
import * as fleet from "./fleet.js";

const atFirst = 3; // counters that are shown to a reader who has chosen none

const hear = { total: totals.show, asOf: status.asOf, problem: status.problem, state: status.connection };

// choose picks the busiest counters for a reader who has chosen none, or any if none is busy.
async function choose(busiest) {
  if (view.chosen || view.keys.length > 0) return;
  let keys = busiest.map(({ key }) => key).slice(0, atFirst);
  if (keys.length === 0) keys = (await ask("v1/counters", [["limit", atFirst]])).counters;
  $("welcome").hidden = keys.length > 0;
  $("totals").hidden = keys.length === 0;
  document.querySelector(".split").hidden = keys.length === 0;
  if (keys.length > 0) change({ keys }, false);
}

// first asks for the busiest counters until there are some.
function first() {
  const wait = repeat(async () => {
    if (view.chosen || view.keys.length > 0) return 3600;
    try {
      const { top, as_of: asOf } = await ask("v1/top", [["window", "1h"], ["limit", atFirst]]);
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

readAddress();
startStatus();
totals.layOut();
onChange((parts) => {
  if (!parts.keys) return;
  $("welcome").hidden = true;
  $("totals").hidden = document.querySelector(".split").hidden = false;
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
