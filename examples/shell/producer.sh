#!/bin/sh
# Counts a hit for each line of standard input: the line names the counter.
#
#   printf 'checkout\n/cart\n' | sh examples/shell/producer.sh
#
# It ends with 0 if every hit is stored. At most 10,000 lines: COLLECT_MAX_HITS. It needs curl 7.84.
# COLLECT_URL says where collect is; COLLECT_TOKEN is a token of it.
set -eu
url=${COLLECT_URL:-http://127.0.0.1:8081}/v1/hits
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Each line becomes an object: {"key":"checkout"}
sed -e 's/[\\"]/\\&/g' -e 's/.*/{"key":"&"}/' >"$dir/hits"
[ -s "$dir/hits" ] || exit 0

# After a lost answer it is unknown whether the hits are stored. So each attempt has the same Idempotency-Key:
# of those within two minutes, the first is stored. collect waits for JetStream for 30 seconds, curl for 35.
id=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
end=$(($(date +%s) + 60))
: >"$dir/answer"
while :; do
	said=$(curl -sS --max-time 35 --data-binary @"$dir/hits" -o "$dir/answer" -w '%{http_code} %header{retry-after}' \
		-H 'Content-Type: application/x-ndjson' -H "Idempotency-Key: $id" \
		${COLLECT_TOKEN:+-H "Authorization: Bearer $COLLECT_TOKEN"} "$url") || said=failed
	status=${said%% *} wait=${said#* }
	case $status in
	2??) exit 0 ;;
	408 | 429 | 5??) cat "$dir/answer" >&2 ;;
	failed) wait=1 ;; # no connection, or it broke: curl has said which
	*) cat "$dir/answer" >&2 && exit 1 ;; # wrong hits: they will be wrong the next time, too
	esac
	if [ $(($(date +%s) + ${wait:=1})) -gt "$end" ]; then
		echo "given up: these hits may not be stored" >&2
		exit 1
	fi
	sleep "$wait"
done
