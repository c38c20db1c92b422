#!/bin/sh
set -e
if [ "$1" = remove ] && command -v systemctl >/dev/null; then
	for program in ingest query collect promql rls watch; do
		[ ! -d /run/systemd/system ] || systemctl stop "tallyroll@$program.service"
		systemctl --quiet disable "tallyroll@$program.service" || true # where no systemd runs
	done
fi
