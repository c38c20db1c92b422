// A menu behind a button, for whatever stands in sight. It is of the document's top layer, so that no table
// cuts it off.
import { el } from "./dom.js";

// toast shows what was done, and has screen readers read it out.
const toast = el("p", { class: "toast", role: "status" });
let fading;
document.body.append(toast);

export function tell(text) {
  clearTimeout(fading);
  toast.textContent = text;
  fading = setTimeout(() => { toast.textContent = ""; }, 5000);
}

// menu makes the button. items gives, whenever the menu is opened, a list of [label, act]; what act returns,
// or promises, is shown.
export function menu(label, items) {
  const list = el("div", { class: "menu", role: "menu", popover: "auto", "aria-label": label });
  const button = el(
    "button",
    {
      type: "button",
      class: "menu-button",
      "aria-label": label,
      title: label,
      "aria-haspopup": "menu",
      "aria-expanded": "false",
    },
    "⋯",
  );
  const all = () => [...list.children];
  const open = (which) => {
    list.replaceChildren(
      ...items().map(([text, act]) => el(
        "button",
        { type: "button", role: "menuitem", tabindex: "-1", onclick: () => run(act) },
        text,
      )),
    );
    list.showPopover({ source: button });
    place();
    all().at(which)?.focus();
  };
  const close = () => {
    list.hidePopover();
    button.focus();
  };
  async function run(act) {
    close();
    try {
      const done = await act();
      if (done) tell(done);
    } catch (error) {
      tell(error.message);
    }
  }
  function place() {
    const at = button.getBoundingClientRect(), room = document.documentElement.clientWidth - list.offsetWidth - 8;
    const below = at.bottom + 4 + list.offsetHeight < innerHeight;
    list.style.left = `${Math.max(8, Math.min(room, at.right - list.offsetWidth))}px`;
    list.style.top = `${below ? at.bottom + 4 : Math.max(8, at.top - 4 - list.offsetHeight)}px`;
  }
  let wasOpen = false; // a press on the button closes an open menu before the click comes
  button.addEventListener("pointerdown", () => { wasOpen = list.matches(":popover-open"); });
  button.addEventListener("click", () => {
    if (!wasOpen) open(0);
    wasOpen = false;
  });
  button.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    open(event.key === "ArrowDown" ? 0 : -1);
  });
  list.addEventListener("toggle", (event) => button.setAttribute("aria-expanded", String(event.newState === "open")));
  list.addEventListener("keydown", (event) => {
    const own = all(), at = own.indexOf(document.activeElement);
    const to = {
      ArrowDown: (at + 1) % own.length,
      ArrowUp: (at - 1 + own.length) % own.length,
      Home: 0,
      End: own.length - 1,
    }[event.key];
    if (to !== undefined) own[to].focus();
    else if (event.key === "Escape" || event.key === "Tab") close();
    else return;
    event.stopPropagation();
    if (event.key !== "Tab") event.preventDefault();
  });
  addEventListener("scroll", () => { if (list.matches(":popover-open")) list.hidePopover(); }, { passive: true });
  return el("span", { class: "menu-of" }, button, list);
}

// copy puts a text on the clipboard. Without HTTPS there is only the old way to do it.
export async function copy(text, done) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return done;
  }
  const field = el("textarea", { class: "hidden", "aria-hidden": "true", tabindex: "-1" });
  const had = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  had?.focus();
  return copied ? done : "The browser does not let this page copy.";
}

// save hands the reader a file.
export function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  return `Saved ${name}.`;
}
