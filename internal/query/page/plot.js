// The drawing of a chart: axes, steps and bars. It does not depend on where points come from.
import { svg } from "./dom.js";
import { compact, seconds, shown } from "./format.js";
import { linear, logarithmic, timeTicks, widest } from "./axis.js";

const top = 12, bottom = 26, right = 8, inset = 3;
const between = 26; // pixels from one panel to the next: room for a name
const leastPixels = 2; // of a step: narrower ones would be a smear
const barPixels = 5; // of a step that is drawn as a bar, at least

// draw makes the drawing of lines, each {line, name, points, open, before}, between two moments. A point is [from,
// to, count, least, most]; from the moment open on, steps are still being counted; before has the points of the
// period before, moved to this one. shades are times of which hits may be missing. If apart is true, each line has a
// panel of its own. marked has the steps that get an arrow. It returns the drawing with the functions that place a
// moment and a count of a line.
export function draw({ lines, marked, from, to, shades, log, apart, width, height, zone }) {
  const panels = apart ? lines.map((line) => [line]) : [lines];
  const tall = panels.length > 1 ? Math.max(56, height / 3) : height - top - bottom;
  height = panels.length > 1 ? top + 6 + panels.length * (tall + between) - between + bottom : height;
  const scales = lines.length === 0
    ? [{ ticks: [0], part: () => 0 }]
    : panels.map((shownHere) => scaleOf(shownHere, log, tall < 120 ? 2 : tall < 210 ? 3 : 4));
  const left = Math.max(28, 12 + 7.5 * Math.max(...scales.map(({ ticks }) => widest(ticks))));
  // some pixels at both ends, so that no bar touches the axis or the edge
  const x = (t) => left + inset + ((t - from) / Math.max(1, to - from)) * (width - left - right - 2 * inset);
  const inside = (t) => Math.max(left, Math.min(width - right, x(t))); // steps of the period before may reach further
  const root = svg(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "drawing" },
    svg("defs"),
  );
  const firsts = lines.flatMap(({ points }) => points.slice(0, 1).map(([a, b]) => b - a));
  const slot = x(from + Math.min(...firsts)) - x(from);
  const crowd = Math.max(1, Math.ceil(leastPixels / slot) || 1);
  const bars = lines.length === 1 && slot >= barPixels;
  const heights = new Map();
  panels.forEach((here, i) => {
    const end = panels.length > 1 ? top + 6 + i * (tall + between) + tall : height - bottom;
    const y = (n) => end - scales[i].part(n) * tall;
    for (const { line } of here) heights.set(line, y);
    root.append(
      ...shades.flatMap((shade) => shaded(shade, x, end - tall, end, i === 0)),
      ...countAxis(scales[i].ticks, y, left, width - right),
    );
    if (panels.length > 1) root.append(title(here[0], left, end - tall - 6, width - left - right));
    for (const line of here) {
      root.append(
        ...(bars ? barsOf : stepsOf)(line, {
          x,
          inside,
          y,
          end,
          crowd,
          alone: here.length === 1,
          filled: lines.length === 1 || apart,
          root,
        }),
      );
      if (marked && crowd === 1) root.append(...outliers(line, marked.steps, x, y));
    }
    if (here.length > 1) root.append(...stillOpen(here, x, end - tall, end, root));
  });
  root.append(
    ...timeAxis(
      timeTicks(from, to, Math.max(2, Math.floor((width - left) / 84)), zone),
      x,
      left,
      width - right,
      height,
    ),
  );
  const at = (pixel) => from + ((pixel - left - inset) / (width - left - right - 2 * inset)) * (to - from);
  return {
    root,
    x,
    at,
    y: (line, n) => heights.get(line)(n),
    top: panels.length > 1 ? top + 6 : top,
    bottom: height - bottom,
    left,
    right: width - right,
    crowd,
    height,
  };
}

function scaleOf(lines, log, wanted) {
  const counts = lines.flatMap(({ points, before }) => [...points, ...before].map(([, , n, , most]) => most ?? n));
  const largest = counts.reduce((a, b) => Math.max(a, b), 1);
  return log
    ? logarithmic(counts.reduce((a, b) => (b > 0 ? Math.min(a, b) : a), largest), largest, wanted + 1)
    : linear(largest, wanted);
}

function countAxis(ticks, y, x1, x2) {
  const out = [];
  let last = Infinity;
  for (const n of ticks) {
    out.push(svg("line", { class: n === 0 ? "axis" : "grid", x1, x2, y1: y(n), y2: y(n) }));
    if (last - y(n) < 14) continue; // numbers would collide
    last = y(n);
    out.push(svg("text", { x: x1 - 8, y: last + 4, "text-anchor": "end" }, compact(n)));
  }
  return out;
}

function timeAxis(ticks, x, left, right, height) {
  return ticks.flatMap(([t, label]) => [
    svg("line", { class: "axis", x1: x(t), x2: x(t), y1: height - bottom, y2: height - bottom + 4 }),
    x(t) > left + 14 && x(t) < right - 20
      ? svg("text", { x: x(t), y: height - 7, "text-anchor": "middle" }, label)
      : null,
  ]).filter((node) => node);
}

// title names the panel of one line. An svg within an svg cuts off what is wider than most letters.
function title({ line, name }, x, y, width) {
  const room = Math.floor((width - 24) / 7), text = shown(name);
  return svg("svg", { x, y: y - 13, width, height: 18 },
    svg("rect", { class: "alone", "data-line": line, x: 0, y: 4, width: 10, height: 10, rx: 3 }),
    svg("text", { class: "name", x: 16, y: 13 }, text.length > room ? `${text.slice(0, room - 1)}…` : text));
}

const px = (n) => n.toFixed(1);

// crowded takes so many steps together as one, which is their mean, with the least and the most of them.
// Steps that stand together do so at every drawing, or the line would twitch while time goes on.
function crowded(points, crowd) {
  if (crowd === 1 || points.length === 0) return points;
  const length = (points[0][1] - points[0][0]) * crowd, groups = new Map();
  for (const point of points) {
    const at = Math.floor(point[0] / length);
    if (!groups.has(at)) groups.set(at, []);
    groups.get(at).push(point);
  }
  return [...groups.values()].map((group) => [
    group[0][0],
    group.at(-1)[1],
    group.reduce((sum, [, , n]) => sum + n, 0) / group.length,
    Math.min(...group.map(([, , n, least]) => least ?? n)),
    Math.max(...group.map(([, , n, , most]) => most ?? n)),
  ]);
}

// stairs goes from step to step, at the height that the value of each has.
function stairs(points, x, y, value = 2) {
  let out = "", last;
  for (const point of points) {
    const at = px(y(point[value]));
    if (at !== last) out += out === "" ? `M${px(x(point[0]))} ${at}` : `H${px(x(point[0]))}V${at}`;
    last = at;
  }
  return out === "" ? "" : `${out}H${px(x(points.at(-1)[1]))}`;
}

function stepsOf({ line, points, open, before }, { x, inside, y, end, crowd, alone, filled, root }) {
  const whole = crowded(points.filter(([t]) => t < open), crowd), unfinished = points.filter(([t]) => t >= open);
  const own = { "data-line": line }, out = [];
  const area = (list) => `${stairs(list, x, y)}V${px(end)}H${px(x(list[0][0]))}Z`;
  if (filled && whole.length > 0) out.push(svg("path", { ...own, class: "area", d: area(whole) }));
  if (alone && unfinished.length > 0) {
    out.push(svg("path", { class: "hatched", fill: hatch(root, line), d: area(unfinished) }));
  }
  if (whole.some(([, , , least]) => least !== undefined)) {
    const back = [...whole].reverse().map(([a, b, , least]) => `H${px(x(b))}V${px(y(least))}H${px(x(a))}`).join("");
    out.push(svg("path", { ...own, class: "band", d: `${stairs(whole, x, y, 4)}${back}Z` }));
  }
  if (before.length > 0) {
    out.push(svg("path", { ...own, class: "before", d: stairs(crowded(before, crowd), inside, y) }));
  }
  out.push(svg("path", { ...own, class: "line", d: stairs(whole, x, y) }));
  if (unfinished.length > 0) out.push(svg("path", { ...own, class: "line open", d: stairs(unfinished, x, y) }));
  return out;
}

function barsOf({ line, points, open, before }, { x, inside, y, end, root }) {
  const bar = ([a, b, n]) => {
    const gap = Math.min(3, (x(b) - x(a)) * 0.2);
    return n === 0
      ? ""
      : `M${px(x(a) + gap / 2)} ${px(end)}V${px(Math.min(y(n), end - 1))}H${px(x(b) - gap / 2)}V${px(end)}Z`;
  };
  const own = { "data-line": line }, unfinished = points.filter(([t]) => t >= open);
  const out = [svg("path", { ...own, class: "bars", d: points.filter(([t]) => t < open).map(bar).join("") })];
  if (unfinished.length > 0) {
    const fill = hatch(root, line);
    out.push(svg("path", { ...own, class: "bars open hatched", fill, d: unfinished.map(bar).join("") }));
  }
  for (const [a, b, , least, most] of points) {
    if (least !== undefined && least < most) {
      out.push(svg("path", { class: "whisker", d: `M${px((x(a) + x(b)) / 2)} ${px(y(least))}V${px(y(most))}` }));
    }
  }
  if (before.length > 0) out.push(svg("path", { ...own, class: "before", d: stairs(before, inside, y) }));
  return out;
}

// outliers are arrows over the steps that chance does not explain: up for more hits, down for fewer.
const outliers = ({ points }, far, x, y) => points.filter(([t]) => far.has(t)).map(([a, b, n]) => {
  const way = far.get(a), tip = y(n) - 6 - 3 * way;
  return svg("path", { class: "far", d: `M${px((x(a) + x(b)) / 2)} ${px(tip)}l-4 ${6 * way}h8Z`, "data-way": way });
});

// stillOpen hatches the steps of several lines that are still being counted.
function stillOpen(lines, x, y1, y2, root) {
  const points = lines.flatMap(({ points, open }) => points.filter(([t]) => t >= open));
  if (points.length === 0) return [];
  const x1 = x(Math.min(...points.map(([t]) => t))), x2 = x(Math.max(...points.map(([, t]) => t)));
  return [svg("rect", { class: "hatched", fill: hatch(root, "all"), x: x1, y: y1, width: x2 - x1, height: y2 - y1 })];
}

// hatch is the name of a pattern in the colour of a line.
function hatch(root, line) {
  const id = `hatch-${line}`, defs = root.firstChild;
  if (!defs.querySelector(`#${id}`)) {
    defs.append(
      svg(
        "pattern",
        {
          id,
          class: "hatch",
          "data-line": line,
          width: 6,
          height: 6,
          patternUnits: "userSpaceOnUse",
          patternTransform: "rotate(45)",
        },
        svg("line", { x1: 1, x2: 1, y1: 0, y2: 6 }),
      ),
    );
  }
  return `url(#${id})`;
}

// shaded marks the time of which hits may be missing, such as that before counting began.
function shaded({ from, to, label }, x, y1, y2, named) {
  const x1 = x(from), x2 = x(to);
  if (x2 - x1 < 2) return [];
  const out = [svg("rect", { class: "uncounted", x: x1, y: y1, width: x2 - x1, height: y2 - y1 })];
  if (named && x2 - x1 > 130) out.push(svg("text", { x: (x1 + x2) / 2, y: y1 + 14, "text-anchor": "middle" }, label));
  return out;
}

// sparkline is a small drawing of a row's points between two moments: steps, as counts are. Those that are still being
// counted are faint.
export function sparkline({ points, step: length, unfinished_from: open = Infinity }, from, to) {
  const step = seconds(length) * 1000, width = 112, height = 24;
  const largest = Math.max(1, ...points.map(([, n]) => n));
  const x = (t) => ((Math.max(from, Math.min(to, t)) - from) / Math.max(1, to - from)) * width;
  const y = (n) => height - 1 - (n / largest) * (height - 3);
  const path = (list) => {
    const bars = list.filter(([t]) => t + step > from).map(([t, n]) => `V${px(y(n))}H${px(x(t + step))}`);
    return bars.length === 0 ? "" : `M${px(x(list[0][0]))} ${height - 1}${bars.join("")}V${height - 1}Z`;
  };
  return svg("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    svg("path", { class: "steps", d: path(points.filter(([t]) => t < open)) }),
    svg("path", { class: "steps open", d: path(points.filter(([t]) => t >= open)) }),
    svg("path", { class: "base", d: `M0 ${height - .5}H${width}` }));
}
