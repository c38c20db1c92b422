"""Prints how many hits counters had in the last hour.

    python3 examples/python/reader.py checkout /cart

QUERY_URL says where query is; QUERY_TOKEN is one of its QUERY_TOKENS, if it has any.
"""
import json, os, sys, urllib.error, urllib.parse, urllib.request

URL = os.environ.get("QUERY_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("QUERY_TOKEN")

params = urllib.parse.urlencode({"key": sys.argv[1:], "window": "1h"}, doseq=True)  # key may repeat
request = urllib.request.Request(f"{URL}/v1/total?{params}")
if TOKEN:
    request.add_header("Authorization", f"Bearer {TOKEN}")
try:
    with urllib.request.urlopen(request, timeout=10) as answer:
        found = json.load(answer)
except urllib.error.HTTPError as refusal:  # 503: ask again after the seconds in Retry-After
    sys.exit(f"{refusal.code} {json.load(refusal)['detail']}")
except OSError as error:  # no connection, or it broke
    sys.exit(f"{URL}: {error}")
for t in found["totals"]:
    # upper is null if nobody has counted lately
    bounds = f"at least {t['lower']}" if t["upper"] is None else f"between {t['lower']} and {t['upper']}"
    print(f"{t['key']} {t['total']} ({bounds})")
print(f"every hit stored before {found['as_of']} is counted", file=sys.stderr)
