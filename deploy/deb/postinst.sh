#!/bin/sh
# Nothing is started by itself: the programs need the addresses of NATS and Redis first. After an upgrade, what runs is
# started again, the readers before the workers.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if [ "$1" = configure ] && [ -n "$2" ]; then
		for program in query promql rls watch collect ingest; do
			systemctl --no-block try-restart "tallyroll@$program.service"
		done
	fi
fi
