"""Counts a hit for each line of standard input: the line names the counter.

    printf 'checkout\\n/cart\\n' | python3 examples/python/producer.py

It ends with 0 if every hit is stored. COLLECT_URL says where collect is; COLLECT_TOKEN is a token of it.
"""
import json, os, sys, time, urllib.error, urllib.request, uuid
from itertools import islice

URL = os.environ.get("COLLECT_URL", "http://127.0.0.1:8081") + "/v1/hits"
TOKEN = os.environ.get("COLLECT_TOKEN")


def store(hits):
    """Returns when the hits are stored.

    After a lost answer nobody knows whether they are. So each attempt has the same Idempotency-Key, and only
    the first of those that come within two minutes is stored. collect waits 30 seconds for JetStream.
    """
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    request = urllib.request.Request(URL, json.dumps(hits).encode(), headers)
    end = time.monotonic() + 60
    while True:
        wait = 1.0
        try:
            with urllib.request.urlopen(request, timeout=35) as answer:
                answer.read()
                return
        except urllib.error.HTTPError as refusal:
            problem = refusal.read().decode(errors="replace")
            if refusal.code not in (408, 429) and refusal.code < 500:  # wrong hits: they will be wrong the next time, too
                sys.exit(f"not stored: {refusal.code} {problem}")
            wait = float(refusal.headers.get("Retry-After", wait))
            reason = f"{refusal.code} {problem}"
        except OSError as error:  # no connection, or it broke
            reason = error
        if time.monotonic() + wait > end:
            sys.exit(f"given up, these hits may not be stored: {reason}")
        print(f"not stored yet: {reason}", file=sys.stderr)
        time.sleep(wait)


# ts is when it happened: without it, a hit counts at the time at which it is stored.
hits = ({"key": line.rstrip("\n"), "ts": int(time.time() * 1000)} for line in sys.stdin)
while batch := list(islice(hits, 1000)):  # COLLECT_MAX_HITS allows 10,000
    store(batch)
