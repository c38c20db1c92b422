// A service whose handler runs only if a limit of Tallyroll allows the request: copy takeFirst.
//
//     TALLYROLL_URL=http://127.0.0.1:8080 LIMIT=login node examples/typescript/middleware.ts
//     curl -i -H 'X-Api-Key: alice' http://127.0.0.1:8000/
//
// If Tallyroll does not answer within the timeout, or with 5xx, FAIL says what becomes of the request: open
// (the default) lets it through, closed answers 503. So does any other answer, whatever FAIL is: the question
// is wrong, and to let everybody through would hide that. Node 22.18 runs it as it is, older ones after tsc or
// esbuild.
import { isUtf8 } from "node:buffer";
import { createHash } from "node:crypto";
import { createServer, type RequestListener } from "node:http";

const url = process.env.TALLYROLL_URL ?? "http://127.0.0.1:8080";
const limit = process.env.LIMIT ?? "login";
const failOpen = process.env.FAIL !== "closed";
const timeout = 300; // milliseconds
const copied = ["RateLimit", "RateLimit-Policy", "Retry-After"];

// keyOf returns the key of a client. Node has a header's bytes as Latin-1, and JSON has no bytes that are not
// UTF-8: they are hashed, as Tallyroll hashes a key that is too long.
function keyOf(header: string): string {
  const bytes = Buffer.from(header, "latin1");
  if (!isUtf8(bytes)) return "sha256:" + createHash("sha256").update(bytes).digest("hex");
  return bytes.toString() || "anonymous";
}

// take asks the limit about a key. It returns undefined without an answer. 200 and 429 are decisions.
async function take(key: string): Promise<Response | undefined> {
  try {
    const answer = await fetch(url + "/v1/take", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ limit, key }), signal: AbortSignal.timeout(timeout),
    });
    const body = await answer.text();
    if (answer.status !== 200 && answer.status !== 429) {
      console.error(`no decision of the limit ${limit}: ${answer.status} ${body.slice(0, 1000)}`);
    }
    return answer;
  } catch (error) {
    console.error(`no decision of the limit ${limit}: ${error}`);
  }
  return undefined;
}

// takeFirst asks the limit about the client's key before each request.
function takeFirst(next: RequestListener): RequestListener {
  return async (request, response) => {
    const answer = await take(keyOf(String(request.headers["x-api-key"] ?? "")));
    const status = answer?.status ?? 503;
    if (status !== 200 && status !== 429 && (status < 500 || !failOpen)) {
      response.writeHead(503).end("the limit cannot be asked\n");
      return;
    }
    for (const name of copied) {
      const value = answer?.headers.get(name);
      if (value) response.setHeader(name, value);
    }
    if (status === 429) {
      response.writeHead(429).end("too many requests\n");
      return;
    }
    next(request, response);
  };
}

const port = Number((process.env.ADDR ?? ":8000").split(":").pop());
createServer(takeFirst((_, response) => { response.end("hello\n"); })).listen(port, "127.0.0.1");
