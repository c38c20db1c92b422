// The page: what the reader has chosen (view), the live connection, and the parts that show something.
import { $, away, repeat } from "./dom.js";
import { ask, askOrLast, clock } from "./api.js";
import { view, change, onChange, start as startView } from "./view.js";
import { compares, offer, spanOf, usual, since, zoneName } from "./range.js";
import { connect, disconnect } from "./live.js";
import { status, start as startStatus } from "./status.js";
import { seconds } from "./format.js";
import { lengthOf } from "./series.js";
import * as ranges from "./ranges.js";
import * as grid from "./grid.js";
import * as explore from "./explore.js";
import * as chart from "./chart.js";
import * as uniques from "./uniques.js";
import * as counter from "./counter.js";
import * as summary from "./summary.js";
import { start as startViews } from "./views.js";

const hear = {
  asOf: status.asOf,
  total(total) {
    explore.hear(total);
    summary.hear(total);
  },
  problem(problem) {
    status.problem(problem);
    if (problem.status === 400) askAgain();
  },
  state(name, error, wait) {
    status.connection(name, error, wait);
    if (error?.status === 400) askAgain();
  },
};

let about; // what the service answers about itself

// askAgain restarts if a question is refused because the tiers have changed.
async function askAgain() {
  const now = await ask("v1/about").catch(() => about);
  if (JSON.stringify(now.tiers) !== JSON.stringify(about.tiers)) location.reload();
}

// The live connection moves the counters of the chart, if their range rolls on, and shows how fresh all
// numbers are: for that, any name will do that the reader's token may ask about.
let listening = "";
function listen() {
  const span = spanOf(view), keys = span.window ? view.lines.flatMap(({ key }) => key ?? []) : [];
  const any = about.token?.prefixes?.[0] ?? "any";
  const question = keys.length > 0 ? { keys, windows: [span.window] } : { keys: [any], windows: [about.windows[0]] };
  if (JSON.stringify(question) === listening) return;
  listening = JSON.stringify(question);
  connect(hear, question);
}

// showChart has the chart ask again if it is to show something else. Until counting has filled the half of
// the range, a reader who has chosen none sees the time since counting began.
let drawn = "";
function showChart() {
  const span = spanOf(view), now = clock.now();
  const young = view.range === usual &&
    span.window &&
    since > span.from &&
    now - since < (now - span.from) / 2 &&
    !new URLSearchParams(location.search).has("range");
  // Its first minutes would be a few slabs of the next tier: the finest tier shows seconds.
  const [finest] = about.tiers, cell = seconds(finest.cell);
  const rate = view.of === "rate";
  const newest = young && now - since > lengthOf(finest.window) && now - since < 5 * lengthOf(finest.window);
  const [window, from] = rate || newest
    ? [rate ? `${Math.min(60 * cell, seconds(finest.window))}s` : finest.window, null]
    : young ? ["", since]
    : [span.window, span.window ? null : span.from];
  const question = {
    lines: view.lines, window, from, to: rate ? null : span.to, step: view.step, zone: zoneName, of: view.of,
    before: !rate && compares(view, span) && span.from - span.before[0],
  };
  const key = JSON.stringify({ ...question, before: Boolean(question.before) });
  if (key === drawn) return;
  drawn = key;
  chart.draw(question);
}

// What the chart asks for: a part of its range, the range before that, and a step.
const zooms = [];
const chartHooks = {
  zoom(from, to) {
    zooms.push({ range: view.range, from: view.from, to: view.to });
    const second = (t) => Math.round(t / 1000) * 1000;
    change({ range: "custom", from: second(from), to: to === null || to >= clock.now() - 1000 ? 0 : second(to) });
  },
  back() {
    if (zooms.length > 0) change(zooms.pop());
  },
  step(step) {
    change({ step });
  },
  of(of) {
    change({ of });
  },
  seen: summary.showPeak,
  visitors: uniques.visitorsOf,
};

// reveal shows the numbers, or how to publish a first hit.
function reveal(numbers) {
  $("welcome").hidden = numbers;
  if (!numbers) import("./pieces.js").then(({ addCopy }) => addCopy($("welcome")), () => {});
  showParts(numbers);
}

// showParts shows what stands around the numbers, also before they come: so nothing moves when they do.
const showParts = (shown) => ["span", "summary", "chart", "explore"].forEach((id) => { $(id).hidden = !shown; });

// showToken shows what the reader's token is about, and hides the views that it does not open.
function showToken(token) {
  if (!token) return;
  const words = [];
  if (token.prefixes) {
    words.push(
      `Your token ${token.name} is about counters that begin with ${token.prefixes.join(" or ")}: ` +
        "this page shows no others.",
    );
  }
  if (!token.may.includes("admin")) {
    words.push("Limits and Operate are for tokens with the right admin.");
    for (const view of ["limits", "operate"]) $("views").querySelector(`[data-to="${view}"]`).hidden = true;
  }
  $("token-note").textContent = words.join(" ");
}

// show shows all that depends on what can be asked here.
function show() {
  showToken(about.token);
  status.mayAsk(about.features.nats && (!about.token || about.token.may.includes("admin")));
  startView();
  if (view.lines.length > 0) reveal(true);
  chart.start({ about, ...chartHooks });
  uniques.start(about, explore.keys, () => {
    explore.draw();
    chart.label();
    summary.draw();
  });
  counter.start(about);
  summary.start(about, chart.readAt);
  ranges.start();
  explore.start({
    reveal,
    answered({ asOf, stale }) {
      if (stale) status.known(asOf);
      showChart();
    },
    failed(error) {
      if (error.status === 400) askAgain();
    },
  });
  grid.start();
  onChange(() => {
    reveal(true);
    note();
    listen();
    showChart();
  });
  note();
  showChart();
  listen();
  document.addEventListener("visibilitychange", () => (away("any") ? disconnect() : connect(hear)));
}

// note shows what the address asks for and the page does not show.
function note() {
  const asked = view.lines.length + view.waiting.length;
  const waiting = view.waiting.length === 0
    ? []
    : [
      `Of the ${asked} lines of this address the chart shows ${view.lines.length}, as many as can be ` +
        "distinguished. Take one out, and the next takes its place.",
    ];
  $("view-note").textContent = [...waiting, ...view.unmet].join(" ");
}

startViews();
startStatus();
const begin = repeat(async () => {
  if (about) return 3600;
  try {
    about = await askOrLast("v1/about");
    $("foot").hidden = false;
  } catch (error) {
    $("foot").hidden = false;
    showParts(false);
    status.connection("lost", error, 1);
    return error.status === 403 ? 3600 : 1;
  }
  offer(about);
  showParts(true);
  show();
  return 3600;
}, "any");
$("notice-retry").addEventListener("click", () => (about ? explore.refresh() : begin()));
