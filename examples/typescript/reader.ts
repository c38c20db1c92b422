// Prints how many hits counters had in the last hour.
//
//     node examples/typescript/reader.ts checkout /cart
//
// QUERY_URL says where query is; QUERY_TOKEN is one of its QUERY_TOKENS, if it has any. Node 22.18 runs it as
// it is, older ones after tsc or esbuild.
type Total = { key: string; total: number; lower: number; upper: number | null };

const params = new URLSearchParams({ window: "1h" });
for (const key of process.argv.slice(2)) params.append("key", key); // key may repeat
const token = process.env.QUERY_TOKEN;
const answer = await fetch(`${process.env.QUERY_URL ?? "http://127.0.0.1:8080"}/v1/total?${params}`, {
  headers: token ? { Authorization: `Bearer ${token}` } : {}, signal: AbortSignal.timeout(10_000),
});
const found = (await answer.json()) as { as_of: string; totals: Total[]; detail?: string };
if (!answer.ok) {
  console.error(answer.status, found.detail); // 503: ask again after the seconds in Retry-After
  process.exit(1);
}
for (const t of found.totals) {
  // upper is null if no worker has counted lately
  const bounds = t.upper === null ? `at least ${t.lower}` : `between ${t.lower} and ${t.upper}`;
  console.log(`${t.key} ${t.total} (${bounds})`);
}
console.error(`every hit stored before ${found.as_of} is counted`);
