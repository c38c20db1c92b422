#!/bin/sh
# Installs nginx or caddy, which the tests of deploy/examples need, with the system's package manager. Says
# what it will do before it does it; ends with an error if it does not know how.
#
#   sh tests/install-proxy.sh nginx
set -eu
program=$1
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if command -v apt-get >/dev/null; then
	set -- "$sudo apt-get update -qq" "$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $program"
elif command -v dnf >/dev/null; then
	set -- "$sudo dnf install -y $program"
elif command -v apk >/dev/null; then
	set -- "$sudo apk add $program"
elif command -v pacman >/dev/null; then
	set -- "$sudo pacman -S --noconfirm $program"
elif command -v brew >/dev/null; then
	set -- "brew install $program"
else
	echo "$program is missing, and no known package manager is here: install $program by hand" >&2
	exit 1
fi
echo "$program is missing, which the tests of deploy/examples need. It is installed now, with:"
printf '  %s\n' "$@"
for command in "$@"; do
	$command
done
PATH=$PATH:/usr/sbin # where Debian puts nginx, and where not every user looks
command -v "$program" >/dev/null || { echo "$program is still not on the PATH" >&2; exit 1; }
