// A small drawing of a row's hits over time: steps, as counts are.
import { svg } from "./dom.js";
import { seconds } from "./format.js";

export const width = 112, height = 24;

// sparkline draws points between two moments. Those that are still being counted are faint.
export function sparkline({ points, step: length, unfinished_from: unfinished }, from, to) {
  const step = seconds(length) * 1000;
  const largest = Math.max(1, ...points.map(([, n]) => n));
  const x = (t) => ((Math.max(from, Math.min(to, t)) - from) / Math.max(1, to - from)) * width;
  const y = (n) => height - 1 - (n / largest) * (height - 3);
  const path = (list) => {
    const bars = list.filter(([t]) => t + step > from).map(([t, n]) => `V${y(n).toFixed(1)}H${x(t + step).toFixed(1)}`);
    return bars.length === 0 ? "" : `M${x(list[0][0]).toFixed(1)} ${height - 1}${bars.join("")}V${height - 1}Z`;
  };
  const open = unfinished ?? Infinity;
  return svg("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    svg("path", { class: "steps", d: path(points.filter(([t]) => t < open)) }),
    svg("path", { class: "steps open", d: path(points.filter(([t]) => t >= open)) }),
    svg("path", { class: "base", d: `M0 ${height - .5}H${width}` }));
}
