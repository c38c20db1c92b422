// Receives the alerts of watch: it verifies the signature, refuses old ones, and handles each change once.
//
//     SECRET=whsec_… node examples/typescript/webhook.ts
//
// In watch.yml: targets: {me: {webhook: http://127.0.0.1:8090/, secret_file: FILE}}, with the same secret.
// Node 22.18 runs it as it is, older ones after tsc or esbuild.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingHttpHeaders } from "node:http";

const tolerance = 300; // seconds, of the sender's clock
const most = 1 << 20; // bytes of a body
const secret = Buffer.from((process.env.SECRET ?? "").replace(/^whsec_/, ""), "base64");
const seen = new Set<string>(); // keep them in a database to survive a restart

// verify checks a body as Standard Webhooks wants it: one of the signatures must be ours.
function verify(headers: IncomingHttpHeaders, body: Buffer): boolean {
  const header = (name: string): string => String(headers[name] ?? "");
  const stamp = Number(header("webhook-timestamp"));
  if (!(Math.abs(Date.now() / 1000 - stamp) <= tolerance)) return false;
  const mac = createHmac("sha256", secret).update(`${header("webhook-id")}.${header("webhook-timestamp")}.`);
  const want = Buffer.from("v1," + mac.update(body).digest("base64"));
  return header("webhook-signature").split(" ").some((one) => {
    const given = Buffer.from(one);
    return given.length === want.length && timingSafeEqual(given, want);
  });
}

if (secret.length === 0) throw new Error("SECRET must be whsec_ and base64");

createServer(async (request, response) => {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request) {
    if ((size += chunk.length) <= most) chunks.push(chunk);
  }
  const body = Buffer.concat(chunks);
  if (size > most || !verify(request.headers, body)) {
    response.writeHead(401).end("the signature is wrong or old\n");
    return;
  }
  const id = String(request.headers["webhook-id"]);
  if (!seen.has(id)) {
    seen.add(id);
    console.log(body.toString()); // here your program reacts
  }
  response.writeHead(200).end();
}).listen(Number((process.env.ADDR ?? ":8090").split(":").pop()), "127.0.0.1");
