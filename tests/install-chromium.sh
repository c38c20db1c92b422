#!/bin/sh
# Installs Chromium with the system's package manager, for the tests of the page. Says what it will do
# before it does it; ends with an error if it does not know how.
set -eu
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if command -v apt-get >/dev/null; then
	set -- "$sudo apt-get update -qq" "$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium"
elif command -v dnf >/dev/null; then
	set -- "$sudo dnf install -y chromium"
elif command -v apk >/dev/null; then
	set -- "$sudo apk add chromium"
elif command -v pacman >/dev/null; then
	set -- "$sudo pacman -S --noconfirm chromium"
else
	echo "no known package manager is here: install Chromium by hand, so that chromium is on the PATH" >&2
	exit 1
fi
echo "Chromium is missing, which the tests of the page need. It is installed now, with:"
printf '  %s\n' "$@"
for command in "$@"; do
	$command
done
command -v chromium >/dev/null || { echo "chromium is still not on the PATH" >&2; exit 1; }
