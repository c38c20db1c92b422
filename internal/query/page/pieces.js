// What the views have in common: boxes that are drawn only if something has changed, bars over time, words of a
// state, and text to copy.
import { el, put, say } from "./dom.js";
import { atMinute } from "./format.js";

// keep draws a box again only if what it is of has changed, so that it leaves the reader alone. The focus stays on
// what has the same data-id.
export function keep(box, of, make) {
  const names = JSON.stringify(of);
  if (box.dataset.of === names) return;
  box.dataset.of = names;
  const id = box.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
  box.replaceChildren(...make());
  if (id !== undefined) [...box.querySelectorAll("[data-id]")].find((node) => node.dataset.id === id)?.focus();
}

// bars are stacked bars over time up to now. Each has its beginning, a title, and its parts from the top: a number
// and a class. A number other than zero is seen, however small.
export function bars(label, list) {
  const most = Math.max(1, ...list.map(({ parts }) => parts.reduce((sum, [n]) => sum + n, 0)));
  const part = ([n, name]) => {
    const node = el("b", { class: name });
    node.style.height = `${n === 0 ? 0 : Math.max(3, (100 * n) / most)}%`;
    return node;
  };
  return [
    el("div", { class: "bars", role: "img", "aria-label": label },
      ...list.map(({ title, parts }) => el("i", { title }, ...parts.map(part)))),
    el("p", { class: "ends note", "aria-hidden": "true" }, el("span", {}, atMinute(list[0].t)), el("span", {}, "now")),
  ];
}

export const words = (level, text) => el(
  "span",
  { class: "words", "data-state": level || false },
  el("span", { class: "dot", "aria-hidden": "true" }),
  text,
);

// drawPages draws the buttons that turn the pages of a list: pages has the parameters of each page up to this one, and
// next is the position before which the next one begins, if there is one.
export function drawPages(box, pages, next, turn, text) {
  const button = (name) => el("button", { type: "button", class: "button" }, name);
  if (box.childElementCount === 0) box.append(button("Newer"), button("Older"), el("span", { class: "note" }));
  const [newer, older, note] = box.children, focused = document.activeElement;
  newer.onclick = () => turn(pages.slice(0, -1));
  older.onclick = () => turn([...pages, [["before", next]]]);
  newer.disabled = pages.length === 1;
  older.disabled = !next;
  if (focused === newer && newer.disabled) older.focus();
  if (focused === older && older.disabled) newer.focus();
  put(note, text);
}

// snippet is a text with a button that copies it. Without a secure context, the button selects the text.
export function snippet(text, id) {
  const code = el("code", { id }, text);
  const button = el("button", {
    type: "button",
    class: "button",
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        put(button, "Copied");
        say("The text is copied.");
      } catch {
        getSelection().selectAllChildren(code);
        put(button, "Selected");
        say("The text is selected: copy it with your keyboard.");
      }
      setTimeout(() => put(button, "Copy"), 2000);
    },
  }, "Copy");
  return el("div", { class: "command" }, el("pre", { tabindex: "0" }, code), button);
}

// addCopy gives each text of a box that has none a button.
export const addCopy = (box) => box.querySelectorAll("dd > pre").forEach((pre) =>
  pre.replaceWith(snippet(pre.textContent)));

// needsNATS is what a view shows instead of itself while query has no NATS.
export const needsNATS = (whose, shows) => el("section", { class: "card" }, el("h2", {}, "This view needs NATS"),
  el("p", { class: "note" }, el("code", {}, "NATS_URL"), " of ", el("code", {}, "query"),
    ` is set to nothing. Set it to the NATS of your ${whose}, and start `, el("code", {}, "query"),
    ` again, to see ${shows}:`),
  snippet("NATS_URL=nats://127.0.0.1:4222 query"),
  el("p", { class: "note" }, "All else works without it."));
