// Marks: what happened to the counts, such as rules that changed, losses and outages, as /v1/marks tells. All charts share
// what was asked.
import { ask, clock } from "./api.js";

export const most = 20; // marks in a chart, the newest: more would hide the lines
const again = 60_000; // milliseconds after which a range that goes on is asked about again

const names = { rules: "Rules changed", loss: "Hits missing", late: "Counted late", tiers: "Tiers changed" };
export const nameOf = ({ kind }) => names[kind] ?? kind;

// touches reports whether a mark lies in a step or a range.
export const touches = ({ at, until }, from, to) => at < to && (until ?? at + 1) > from;

let had = { range: "", at: 0, marks: [] };

// marksOf returns what is known of the marks of a range, each {at, until, kind, stream, detail}, and asks if nobody has
// lately: asked is called if there are other ones then. Without an answer there are none.
export function marksOf({ window, from, to }, begin, asked) {
  const range = [window, from, to].join(), goesOn = to === null;
  if (had.range === range && (!goesOn || clock.now() - had.at < again)) return had.marks;
  had = { range, at: clock.now(), marks: had.range === range ? had.marks : [] };
  const mine = had;
  ask("v1/marks", [["from", Math.round(begin)], ...(to === null ? [] : [["to", to]]), ["limit", most]]).then(({ marks }) => {
    const before = JSON.stringify(mine.marks);
    mine.marks = marks.map((mark) => ({ ...mark, at: Date.parse(mark.at), until: mark.until && Date.parse(mark.until) }));
    if (mine === had && JSON.stringify(mine.marks) !== before) asked();
  }, () => {});
  return had.marks;
}
