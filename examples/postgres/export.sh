#!/bin/sh
# Copies the hits of all counters into a table of PostgreSQL, step by step: of the last day of UTC that is over, or of
# the range that the arguments name. Run it once a day, after midnight of UTC. It can be repeated at will: a row that is
# there is replaced.
#
#   sh examples/postgres/export.sh
#   sh examples/postgres/export.sh 'from=2026-11-19T00:00:00Z&to=2026-11-20T00:00:00Z&step=1h'
#
# QUERY_URL says where query is; QUERY_TOKEN is one of its QUERY_TOKENS, if it has any. psql finds its server and
# database by PGHOST, PGDATABASE and so on. It needs curl 7.76.
set -eu
url=${QUERY_URL:-http://127.0.0.1:8080}/v1/export?format=csv${1:+&$1}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# An export that ends early has no end, and curl fails with it: then nothing is copied. No --max-time: it may take long.
curl -sS --fail-with-body --compressed -D "$dir/headers" -o "$dir/rows.csv" \
	${QUERY_TOKEN:+-H "Authorization: Bearer $QUERY_TOKEN"} "$url" || {
	cat "$dir/rows.csv" >&2 2>/dev/null || :
	exit 1
}
# Behind the answer's headers there are its trailers.
field() { tr -d '\r' <"$dir/headers" | awk -F ': ' -v name="$1" 'tolower($1) == tolower(name) { found = $2 } END { print found }'; }
from=$(field Tallyroll-From) to=$(field Tallyroll-To) step=$(field Tallyroll-Step)

# The copy and the upsert are one transaction.
psql -X -q -v ON_ERROR_STOP=1 <<SQL
SET client_min_messages = warning;
BEGIN;
CREATE TABLE IF NOT EXISTS hits (key text, "from" timestamptz, "to" timestamptz NOT NULL, hits bigint NOT NULL, PRIMARY KEY (key, "from"));
CREATE TEMP TABLE staging (LIKE hits) ON COMMIT DROP;
\\copy staging FROM '$dir/rows.csv' WITH (FORMAT csv, HEADER)
INSERT INTO hits SELECT * FROM staging ON CONFLICT (key, "from") DO UPDATE SET "to" = excluded."to", hits = excluded.hits;
COMMIT;
SQL
echo "$(field Tallyroll-Rows) rows of $step from $from to $to, complete: $(field Tallyroll-Complete)"
[ "$(field Tallyroll-Complete)" = true ] || {
	echo "hits of this range are known to be missing, or to is not over yet: run it again when as_of has passed it" >&2
	exit 3
}
