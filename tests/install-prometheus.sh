#!/bin/sh
# Installs prometheus and promtool with the system's package manager, without starting them
# as a service. Says what it will do before it does it; ends with an error if it does not know how.
set -eu
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if command -v apt-get >/dev/null; then
	# RUNLEVEL=1 keeps the package from starting a server: the tests start their own.
	set -- "$sudo apt-get update -qq" "$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends prometheus"
elif command -v apk >/dev/null; then
	set -- "$sudo apk add prometheus"
elif command -v pacman >/dev/null; then
	set -- "$sudo pacman -S --noconfirm prometheus"
elif command -v brew >/dev/null; then
	set -- "brew install prometheus"
else
	echo "no known package manager is here: install prometheus and promtool by hand" >&2
	exit 1
fi
echo "prometheus and promtool, for the tests of metrics and alerts, are installed now, with:"
printf '  %s\n' "$@"
for command in "$@"; do
	$command
done
command -v promtool >/dev/null || { echo "promtool is still not on the PATH" >&2; exit 1; }
