#!/bin/sh
# Installs redis-server with the system's package manager, without starting it
# as a service. Says what it does; ends with an error where it does not know how.
set -eu
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
if command -v apt-get >/dev/null; then
	echo "+ apt-get install redis-server"
	as_root apt-get update -qq
	# RUNLEVEL=1 keeps the package from starting a server: the tests start their own.
	as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq redis-server
elif command -v dnf >/dev/null; then
	echo "+ dnf install redis"
	as_root dnf install -y redis
elif command -v apk >/dev/null; then
	echo "+ apk add redis"
	as_root apk add redis
elif command -v pacman >/dev/null; then
	echo "+ pacman -S redis"
	as_root pacman -S --noconfirm redis
elif command -v brew >/dev/null; then
	echo "+ brew install redis"
	brew install redis
else
	echo "no known package manager: install redis-server (7 or later) by hand" >&2
	exit 1
fi
command -v redis-server >/dev/null || { echo "redis-server is still not on the PATH" >&2; exit 1; }
