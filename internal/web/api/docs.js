// "Try it" of the page /docs: sends a request to this service, with the token that the page at / has kept.
const most = 20000, longest = 3000; // characters of an answer, and milliseconds of one that does not end

async function send(form) {
  const address = new URL(form.elements.path.value, location.href), token = sessionStorage.getItem("tallyroll-token");
  if (address.origin !== location.origin) throw new Error("Only this service can be asked here: begin with /.");
  const body = form.elements.body?.value, stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), longest);
  let text = "", response;
  try {
    response = await fetch(address, {
      method: form.dataset.method, body, signal: stop.signal, credentials: "omit",
      headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...(token ? { Authorization: `Bearer ${token}` } : {}) },
    });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done && text.length < most; part = await reader.read()) text += part.value;
    if (text.length >= most) stop.abort();
  } catch (error) {
    if (error.name !== "AbortError" || !response) throw error;
    text += "\n… it goes on: this is what came in 3 seconds.";
  } finally {
    clearTimeout(timer);
  }
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* it is no JSON, or cut */ }
  return { status: `${response.status} ${response.statusText}`, unauthorized: response.status === 401, text: text.slice(0, most) };
}

for (const form of document.querySelectorAll("form.try")) {
  form.hidden = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const output = form.querySelector("output"), pre = document.createElement("pre"), said = document.createElement("p");
    try {
      const answer = await send(form);
      said.textContent = answer.status;
      pre.textContent = answer.text;
      if (answer.unauthorized && form.dataset.home) {
        const home = document.createElement("a");
        home.href = form.dataset.home;
        home.textContent = "Enter a token on the page";
        said.append(": ", home, ", and come back in the same tab.");
      }
    } catch (error) {
      said.textContent = error.name === "AbortError" ? "The service does not answer in 3 seconds." : error.message;
    }
    output.replaceChildren(said, ...(pre.textContent ? [pre] : []));
  });
}
