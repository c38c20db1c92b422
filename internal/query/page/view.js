// What the reader has chosen. It lives in the address, so that a view can be shared.

export const most = 7; // as many lines as can be told apart
export const windows = ["1m", "1h", "24h", "7d", "30d"];
export const steps = { "1m": ["1s", "5s", "10s"], "1h": ["1m", "5m", "15m"], "24h": ["15m", "1h", "3h"], "7d": ["6h", "1d"], "30d": ["6h", "1d"] };
export const topWindows = ["1m", "1h", "24h", "7d"];

const listeners = [];
export const view = { keys: [], range: "1h", step: "1m", top: "1h", chosen: false };

export function readAddress() {
  const params = new URLSearchParams(location.search);
  view.keys = [...new Set(params.getAll("key").filter((key) => key !== ""))].slice(0, most);
  view.chosen = params.has("key") || params.has("none");
  view.range = windows.includes(params.get("range")) ? params.get("range") : "1h";
  view.step = steps[view.range].includes(params.get("step")) ? params.get("step") : steps[view.range][0];
  view.top = topWindows.includes(params.get("top")) ? params.get("top") : "1h";
}

function writeAddress() {
  const params = new URLSearchParams();
  for (const key of view.keys) params.append("key", key);
  if (view.chosen && view.keys.length === 0) params.set("none", "");
  if (view.range !== "1h") params.set("range", view.range);
  if (view.step !== steps[view.range][0]) params.set("step", view.step);
  if (view.top !== "1h") params.set("top", view.top);
  const query = params.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

// change sets parts of the view and tells those who show them.
export function change(parts, byReader = true) {
  Object.assign(view, parts);
  if (byReader) {
    if (parts.keys) view.chosen = true;
    writeAddress();
  }
  for (const tell of listeners) tell(parts);
}

export const onChange = (tell) => listeners.push(tell);

export function add(key) {
  if (view.keys.includes(key) || view.keys.length >= most) return false;
  change({ keys: [...view.keys, key] });
  return true;
}

export function remove(key) {
  change({ keys: view.keys.filter((other) => other !== key) });
}
