// Counts a hit for each line of standard input: the line names the counter.
//
//     printf 'checkout\n/cart\n' | node examples/typescript/producer.ts
//
// It ends with 0 if every hit is stored. COLLECT_URL says where collect is; COLLECT_TOKEN is a token of it.
// Node 22.18 runs it as it is, older ones after tsc or esbuild.
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

type Hit = { key: string; ts: number };

const url = (process.env.COLLECT_URL ?? "http://127.0.0.1:8081") + "/v1/hits";
const token = process.env.COLLECT_TOKEN;
const most = 1000; // hits in a request; COLLECT_MAX_HITS allows 10,000

function fail(why: string): never {
  console.error(why);
  process.exit(1);
}

// store returns when the hits are stored. After a lost answer it is unknown whether they are. So each attempt
// has the same Idempotency-Key, and only the first of those that come within two minutes is stored.
async function store(hits: Hit[]): Promise<void> {
  const headers: Record<string, string> = { "Content-Type": "application/json", "Idempotency-Key": randomUUID() };
  if (token) headers.Authorization = `Bearer ${token}`;
  for (const end = Date.now() + 60_000; ; ) {
    let wait = 1, reason: string;
    try {
      // collect waits 30 seconds for JetStream.
      const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(hits), signal: AbortSignal.timeout(35_000) });
      reason = `${answer.status} ${await answer.text()}`;
      if (answer.ok) return;
      // Wrong hits will be wrong the next time, too.
      if (answer.status < 500 && answer.status !== 408 && answer.status !== 429) fail(`not stored: ${reason}`);
      wait = Number(answer.headers.get("Retry-After") ?? wait);
    } catch (error) {
      reason = String(error); // no connection, or it broke
    }
    if (Date.now() + wait * 1000 > end) fail(`given up, these hits may not be stored: ${reason}`);
    console.error(`not stored yet: ${reason}`);
    await sleep(wait * 1000);
  }
}

let batch: Hit[] = [];
for await (const line of createInterface({ input: process.stdin })) {
  // ts is when it happened: without it, a hit counts at the time at which it is stored.
  if (batch.push({ key: line, ts: Date.now() }) === most) {
    await store(batch);
    batch = [];
  }
}
if (batch.length > 0) await store(batch);
