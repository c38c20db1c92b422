#!/bin/sh
# Installs redis-server with the system's package manager, without starting it
# as a service. Says what it will do before it does it; ends with an error if it does not know how.
set -eu
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if command -v apt-get >/dev/null; then
	# RUNLEVEL=1 keeps the package from starting a server: the tests start their own.
	set -- "$sudo apt-get update -qq" "$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq redis-server"
elif command -v dnf >/dev/null; then
	set -- "$sudo dnf install -y redis"
elif command -v apk >/dev/null; then
	set -- "$sudo apk add redis"
elif command -v pacman >/dev/null; then
	set -- "$sudo pacman -S --noconfirm redis"
elif command -v brew >/dev/null; then
	set -- "brew install redis"
else
	echo "redis-server is missing, which the tests need, and no known package manager is here: install redis-server (7 or later) by hand" >&2
	exit 1
fi
echo "redis-server is missing, which the tests need. It is installed now, with:"
printf '  %s\n' "$@"
for command in "$@"; do
	$command
done
command -v redis-server >/dev/null || { echo "redis-server is still not on the PATH" >&2; exit 1; }
