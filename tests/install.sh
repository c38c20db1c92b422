#!/bin/sh
# Installs a program that tests need, with the system's package manager, without starting it as a service.
# Does nothing if it is there. Prints what it will do before it does it; ends with an error if it does not know
# how. With -n it installs nothing, and says what is left out without the program.
#
#   sh tests/install.sh [-n] redis|nginx|caddy|chromium|prometheus|alertmanager|postgres|node
set -eu
only_look=
[ "$1" != -n ] || { only_look=1 && shift; }
name=$1 package=$1 program=$1
case $name in
redis) program="redis-server valkey-server" need="the tests" ;;
nginx | caddy) need="the test of deploy/examples with a real $name" ;;
chromium) program="chromium-headless-shell chromium chromium-browser google-chrome" need="the tests of the page in a browser (tests/page)" ;;
prometheus) need="the tests of metric names, alerts and scraping in tests/deploy" ;;
alertmanager) program=amtool need="the check of deploy/alertmanager.yml" ;;
postgres) package=postgresql need="the comparison with Postgres in tests/bench" ;;
node) package=nodejs program=esbuild need="the examples in TypeScript (tests/clients)" ;;
*) echo "$name: redis, nginx, caddy, chromium, prometheus, alertmanager, postgres and node are known" >&2 && exit 2 ;;
esac

# Debian puts servers where not every user looks.
is_there() {
	for directory in /usr/sbin /usr/lib/postgresql/*/bin; do PATH=$PATH:$directory; done
	for p in $program; do ! command -v "$p" >/dev/null || return 0; done
	return 1
}

! is_there || exit 0
program=${program%% *}
if [ "$only_look" ]; then
	echo "SKIPPED: $need: $program is missing: make $name installs it"
	exit 0
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if command -v apt-get >/dev/null; then
	[ "$package" != alertmanager ] || package=prometheus-alertmanager
	[ "$package" != nodejs ] || package="nodejs esbuild" # which an old Node needs for TypeScript
	# Where it can be had: without a window of its own it needs a third of the processor.
	[ "$package" != chromium ] || ! apt-cache show chromium-headless-shell >/dev/null 2>&1 || package=chromium-headless-shell
	# RUNLEVEL=1 keeps the package from starting a server: the tests start their own.
	set -- "$sudo apt-get update -qq" "$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $package"
elif command -v dnf >/dev/null; then
	[ "$package" != postgresql ] || package=postgresql-server
	set -- "$sudo dnf install -y $package"
elif command -v apk >/dev/null; then
	set -- "$sudo apk add $package"
elif command -v pacman >/dev/null; then
	set -- "$sudo pacman -S --noconfirm $package"
elif command -v brew >/dev/null; then
	set -- "brew install $package"
else
	echo "$program is missing, for $need, and no known package manager is here: install it by hand" >&2
	exit 1
fi
echo "$program is missing, for $need. It is installed now, with:"
printf '  %s\n' "$@"
for command in "$@"; do
	$command
done
is_there || { echo "$program is still not to be found" >&2 && exit 1; }
