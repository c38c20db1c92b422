#!/bin/sh
# Puts a server into a folder without installing it: a Debian package of another suite with the libraries that it
# needs, started through their own loader; or a nats-server from its Go module. The folder then has redis-server
# (whatever the package calls it) or nats-server. Ends with an error if the server cannot be had here.
#
#   sh tests/servers/fetch.sh FOLDER debian SUITE PACKAGE VERSION     VERSION: how it begins, such as 9.1
#   sh tests/servers/fetch.sh FOLDER nats VERSION                     VERSION: such as v2.12.15
set -eu
folder=$1 kind=$2
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if [ "$kind" = nats ]; then
	GOFLAGS=-trimpath CGO_ENABLED=0 GOBIN=$folder go install "github.com/nats-io/nats-server/v2@$3"
	exit
fi
suite=$3 package=$4 version=$5
[ ! -x "$folder/redis-server" ] || exit 0
command -v apt-get >/dev/null || { echo "no apt-get here" >&2 && exit 1; }
# The mirror of this machine, and a state of apt's own: nothing is installed, and nothing of the machine's is touched.
mirror=$(sed -nE 's/^(URIs:|deb( \[[^]]*\])?) *(https?:[^ ]+).*/\3/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -E '/debian/?$' | head -n 1)
[ -n "$mirror" ] || { echo "no mirror of Debian in /etc/apt" >&2 && exit 1; }
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
: >"$state/status"
for one in $suite; do echo "deb $mirror $one main"; done >"$state/sources.list"
apt() {
	apt-get -qq -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State="$state" -o Dir::State::lists="$state/lists" \
		-o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o Debug::NoLocking=1 -o Acquire::http::Timeout=20 -o APT::Sandbox::User="$(id -un)" "$@"
}
apt update
apt -t "${suite%% *}" install --download-only --no-install-recommends -y "$package" >/dev/null
for archive in "$state"/cache/archives/*.deb; do dpkg -x "$archive" "$folder/root"; done
program=$folder/root/usr/bin/$package
loader=$(find "$folder/root" -name 'ld-linux*.so.*' | head -n 1)
libraries=$(find "$folder/root" -name 'libc.so.6' -exec dirname {} \; | head -n 1)
printf '#!/bin/sh\nexec "%s" --library-path "%s:%s" "%s" "$@"\n' "$loader" "$libraries" "$folder/root/usr/lib/$(basename "$libraries")" "$program" >"$folder/redis-server"
chmod +x "$folder/redis-server"
"$folder/redis-server" --version | grep -q "v=$version" || {
	"$folder/redis-server" --version >&2
	rm "$folder/redis-server"
	echo "$suite has another version than $version" >&2
	exit 1
}
