#!/bin/sh
# Prints how many hits counters had in the last hour.
#
#   sh examples/shell/reader.sh checkout /cart
#
# QUERY_URL says where query is; QUERY_TOKEN is one of its QUERY_TOKENS, if it has any. It needs curl 7.76.
set -eu
url=${QUERY_URL:-http://127.0.0.1:8080}/v1/total

for key; do
	# --fail-with-body: an error is a JSON object whose detail says what was wrong, and curl ends with 22.
	answer=$(curl -sS --fail-with-body --max-time 10 --get --data-urlencode "key=$key" -d window=1h \
		${QUERY_TOKEN:+-H "Authorization: Bearer $QUERY_TOKEN"} "$url") || {
		printf '%s\n' "$answer" >&2
		exit 1
	}
	# upper is null if nobody has counted lately.
	numbers=$(printf '%s' "$answer" | sed 's/.*"total":\([0-9]*\),"lower":\([0-9]*\),"upper":\([0-9nul]*\),.*/\1 (between \2 and \3)/
		s/between \([0-9]*\) and null/at least \1/')
	printf '%s %s\n' "$key" "$numbers"
done
