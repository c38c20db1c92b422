// A service whose handler runs only if a limit of Tallyroll allows the request: copy takeFirst.
//
//     TALLYROLL_URL=http://127.0.0.1:8080 LIMIT=login node examples/typescript/middleware.ts
//     curl -i -H 'X-Api-Key: alice' http://127.0.0.1:8000/
//
// If Tallyroll does not decide within the timeout, FAIL says what becomes of the request: open (the default)
// lets it through, closed answers 503. Node 22.18 runs it as it is, older ones after tsc or esbuild.
import { createServer, type RequestListener } from "node:http";

const url = process.env.TALLYROLL_URL ?? "http://127.0.0.1:8080";
const limit = process.env.LIMIT ?? "login";
const failOpen = process.env.FAIL !== "closed";
const timeout = 300; // milliseconds
const copied = ["RateLimit", "RateLimit-Policy", "Retry-After"];

// take asks the limit about a key. It returns undefined if there is no decision.
async function take(key: string): Promise<Response | undefined> {
  try {
    const answer = await fetch(url + "/v1/take", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ limit, key }), signal: AbortSignal.timeout(timeout),
    });
    const body = await answer.text();
    if (answer.status === 200 || answer.status === 429) return answer;
    console.error(`no decision of the limit ${limit}: ${answer.status} ${body.slice(0, 1000)}`);
  } catch (error) {
    console.error(`no decision of the limit ${limit}: ${error}`);
  }
  return undefined; // it does not answer, or refuses the question itself: a mistake here is not the client's
}

// takeFirst asks the limit about the client's key before each request.
function takeFirst(next: RequestListener): RequestListener {
  return async (request, response) => {
    const answer = await take(String(request.headers["x-api-key"] ?? "anonymous"));
    if (answer === undefined && !failOpen) {
      response.writeHead(503).end("the limit cannot be asked\n");
      return;
    }
    for (const name of copied) {
      const value = answer?.headers.get(name);
      if (value) response.setHeader(name, value);
    }
    if (answer?.status === 429) {
      response.writeHead(429).end("too many requests\n");
      return;
    }
    next(request, response);
  };
}

const port = Number((process.env.ADDR ?? ":8000").split(":").pop());
createServer(takeFirst((_, response) => { response.end("hello\n"); })).listen(port, "127.0.0.1");
