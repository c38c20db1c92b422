// Calls to the service: the one place for tokens, problems and the service's clock.
import { $ } from "./dom.js";

const stored = "tallyroll-token";

export const hasToken = () => sessionStorage.getItem(stored) !== null;

// Problem is an answer that has failed, with the reason. Its status is 0 if nothing answers at all.
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// unbegun tells a namespace that no worker has counted in from a Redis that does not answer: both are a 503.
export const unbegun = (detail) => /^no worker has counted/.test(detail ?? "");

// call asks and returns the response if it is a good one. It asks the reader for a token if one is needed.
export async function call(path, params, options = {}) {
  const query = new URLSearchParams(params).toString();
  for (;;) {
    const token = sessionStorage.getItem(stored);
    if (token && whyNoToken(token)) { // no header can carry it: fetch would fail as it does without a service
      await askToken(token);
      continue;
    }
    let response;
    try {
      response = await fetch(query ? `${path}?${query}` : path, {
        ...options, credentials: "omit",
        headers: { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) },
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, `${error.name === "TimeoutError" ? "NATS" : "The service"} does not answer.`);
    }
    const date = Date.parse(response.headers.get("Date") ?? "");
    if (!clock.exact && !Number.isNaN(date)) clock.set(date, false);
    if (response.ok) return response;
    if (response.status !== 401) throw new Problem(response.status, await detailOf(response));
    await askToken(token);
  }
}

// soon are options for a question that needs NATS: it may be without an answer while NATS is away.
export const soon = () => ({ signal: AbortSignal.timeout(5000) });

export const ask = async (path, params, options) => (await call(path, params, options)).json();

// What this tab was answered last outlives a reload: without it the page would be empty while Redis is away.
const keptLast = "tallyroll-last", mostKept = 20;
const last = new Map(JSON.parse(sessionStorage.getItem(keptLast) ?? "[]"));
addEventListener("pagehide", () => {
  try {
    sessionStorage.setItem(keptLast, JSON.stringify([...last]));
  } catch {
    sessionStorage.removeItem(keptLast); // too many
  }
});

// askOrLast returns the last answer to a question if a server is away, with the problem as stale. The view,
// which the address has, tells one question from another: times go on.
export async function askOrLast(path, params = [], options = {}) {
  const name = [
    path,
    ...(params.length === 0
      ? []
      : [location.search, ...params.filter(([param]) => !["from", "to", "at"].includes(param)).flat()]),
  ].join(" ");
  try {
    const answer = await ask(path, params, options);
    last.delete(name); // the newest are last
    last.set(name, answer);
    if (last.size > mostKept) last.delete([...last.keys()].find((other) => other !== "v1/about"));
    return answer;
  } catch (error) {
    if ((error.status > 0 && error.status < 502) || unbegun(error.message) || !last.has(name)) throw error;
    return { ...last.get(name), stale: error };
  }
}

export const post = (path, body) =>
  ask(path, {}, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });

async function detailOf(response) {
  try {
    return (await response.json()).detail;
  } catch {
    return `The service answers with status ${response.status}.`;
  }
}

// whyNoToken returns why a text cannot be a token; empty if it can. What comes by copy and paste can have
// characters in it that are invisible.
function whyNoToken(text) {
  const at = [...text].findIndex((c) => !/[!-~]/.test(c));
  if (at < 0) return "";
  const character = [...text][at], code = `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  const what = character === " "
    ? "a space"
    : /[\p{C}\p{Z}\p{M}]/u.test(character) ? `invisible (${code})`
    : `${character} (${code})`;
  return `This cannot be a token: its character ${at + 1} is ${what}. ` +
    "Tokens have letters, digits and signs of ASCII only. Type it, or copy it again.";
}

// askToken waits for a token other than the one that was refused. All who need one wait for the same.
let asking;
function askToken(refused) {
  if (refused !== sessionStorage.getItem(stored)) return Promise.resolve(); // there is a new one already
  if (!asking) {
    $("token-error").textContent = refused ? whyNoToken(refused) || "The service has refused this token." : "";
  }
  asking ??= new Promise((resolve) => {
    const dialog = $("token"), form = $("token-form"), value = $("token-value");
    const keepOpen = (event) => event.preventDefault();
    const take = (event) => {
      event.preventDefault();
      const given = value.value.trim();
      value.value = "";
      const why = given === "" ? "Enter a token." : whyNoToken(given);
      $("token-error").textContent = why;
      if (why) {
        value.focus();
        return;
      }
      sessionStorage.setItem(stored, given);
      last.clear(); // it may have been for another reader
      dialog.removeEventListener("cancel", keepOpen);
      form.removeEventListener("submit", take);
      dialog.close();
      asking = undefined;
      resolve();
    };
    dialog.addEventListener("cancel", keepOpen);
    form.addEventListener("submit", take);
    dialog.showModal();
  });
  return asking;
}

// clock is the time by the service, whatever the reader's own clock shows, in whole milliseconds, as the
// service takes them.
export const clock = {
  exact: false,
  base: Date.now() - performance.now(),
  set(now, exact) {
    clock.exact = exact;
    clock.base = now - performance.now();
  },
  now: () => Math.round(clock.base + performance.now()),
};
