// What is seen, in other forms: a request, a query, a table, a picture.
import { hasToken } from "./api.js";
import { svg } from "./dom.js";
import { shown } from "./format.js";
import { clocksOf } from "./axis.js";

// curl writes requests as commands.
export function curl(path, requests) {
  const header = hasToken() ? `-H "Authorization: Bearer $TOKEN" ` : "";
  return requests.map((params) =>
    `curl -sS ${header}'${new URL(`${path}?${new URLSearchParams(params)}`, document.baseURI)}'`).join("\n");
}

const quoted = (text) => `"${text.replace(/[\\"]/g, "\\$&")}"`;
const literal = (text) => text.replace(/[\\^$*+?()[\]{}|]/g, "\\$&").replaceAll(".", "[.]");

// promql writes lines as queries, each of hits per step: one for all counters, one for each prefix. Uniques
// are those of each cell, because those of a step are not their sum.
export function promql(lines, step, uniques) {
  const range = step.endsWith("mo") ? `${Number.parseInt(step, 10) * 30}d` : step;
  const sum = (matcher) => uniques
    ? `tallyroll_uniques{key${matcher}}`
    : `sum_over_time(tallyroll_hits{key${matcher}}[${range}])`;
  const keys = lines.filter(({ key }) => key !== undefined).map(({ key }) => key);
  return [
    ...(keys.length === 0
      ? []
      : [sum(keys.length === 1 ? `=${quoted(keys[0])}` : `=~${quoted(keys.map(literal).join("|"))}`)]),
    ...lines.filter(({ prefix }) => prefix !== undefined)
      .map(({ prefix }) => `sum(${sum(`=~${quoted(`${literal(prefix)}.*`)}`)})`),
  ].join("\n");
}

// inZone writes a moment as RFC 3339 with the offset of a zone.
function inZone(t, zone) {
  const ahead = clocksOf(zone).ahead(t), minutes = Math.abs(ahead) / 60_000, two = (n) => String(n).padStart(2, "0");
  const offset = ahead === 0 ? "Z" : `${ahead < 0 ? "-" : "+"}${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`;
  return new Date(t + ahead).toISOString().slice(0, 19) + offset;
}

// csv is a table like that of /v1/series: without steps that are still being counted, and with names that no
// spreadsheet takes for formulas.
export function csv(lines, zone) {
  const cell = (text) => (/[",\r\n]|^ /.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const bounded = lines.some(({ points }) => points.some((point) => point.length > 3));
  const names = lines.map(({ name }) => (/^[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(name) ? `'${name}` : name));
  const rows = [
    ["time", ...names, ...(bounded ? names.flatMap((name) => [`${name} lower`, `${name} upper`]) : []), "complete"],
  ];
  const by = lines.map(({ points, open }) =>
    new Map(points.filter(([t]) => t < open).map((point) => [point[0], point])));
  for (const t of [...new Set(by.flatMap((points) => [...points.keys()]))].sort((a, b) => a - b)) {
    const here = by.map((points) => points.get(t));
    rows.push([
      inZone(t, zone),
      ...here.map((point) => point?.[2] ?? ""),
      ...(bounded ? here.flatMap((point) => [point?.[3] ?? point?.[2] ?? "", point?.[4] ?? point?.[2] ?? ""]) : []),
      lines.every(({ completeFrom }) => t >= completeFrom),
    ]);
  }
  return rows.map((row) => `${row.map((value) => cell(String(value))).join(",")}\n`).join("");
}

const kept = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "stroke-opacity",
  "font-family",
  "font-size",
  "font-weight",
];

// picture is a drawing as a file: it looks as it does in the page, with the names of its lines below it.
export function picture(drawn, lines, background, ink) {
  const copied = drawn.root.cloneNode(true), from = [...drawn.root.querySelectorAll("*")], row = 20;
  copied.querySelectorAll("*").forEach((node, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of kept) {
      const value = style.getPropertyValue(name);
      if (!node.hasAttribute(name) || !value.startsWith("url")) node.setAttribute(name, value);
    }
  });
  copied.querySelector(".cursor")?.remove();
  const width = Number(copied.getAttribute("width")), height = drawn.height + lines.length * row + 8;
  for (const [name, value] of [
    ["xmlns", "http://www.w3.org/2000/svg"],
    ["height", height],
    ["viewBox", `0 0 ${width} ${height}`],
    ["font-family", "system-ui, sans-serif"],
  ]) {
    copied.setAttribute(name, value);
  }
  copied.prepend(svg("rect", { width, height, fill: background }));
  lines.forEach(({ name, color }, i) => {
    const y = drawn.height + i * row;
    copied.append(svg("rect", { x: drawn.left, y: y + 5, width: 10, height: 10, rx: 3, fill: color }),
      svg("svg", { x: drawn.left + 18, y, width: width - drawn.left - 18, height: row },
        svg("text", { y: 14, "font-size": 13, fill: ink }, shown(name))));
  });
  return new XMLSerializer().serializeToString(copied);
}
