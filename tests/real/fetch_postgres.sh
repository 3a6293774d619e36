#!/bin/sh
# A PostgreSQL server for the tests, unpacked from the distribution's packages into .venv/postgres: nothing is installed,
# nothing is started, and no root is needed. Does nothing where a server is there already; where none can be had it says
# why, and the tests that want one are skipped.
set -eu
cd "$(dirname "$0")/../.."
into=.venv/postgres

for there in /usr/lib/postgresql/*/bin/postgres "$into"/usr/lib/postgresql/*/bin/postgres "$(command -v postgres || :)"; do
	[ -x "$there" ] && exit 0
done
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
	echo "no PostgreSQL server, and no apt-get to fetch one: tests that need it will be skipped" >&2
	exit 0
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/archives/partial"
fetch() {
	apt-get install --quiet=2 --yes --no-install-recommends --download-only \
		-o Debug::NoLocking=1 -o Dir::Cache::archives="$work/archives" postgresql >"$work/log" 2>&1
}
echo "fetching PostgreSQL for the tests into $into"
fetch || {
	[ "$(id -u)" = 0 ] && apt-get update --quiet=2 >"$work/log" 2>&1 && fetch
} || {
	echo "PostgreSQL could not be fetched: tests that need it will be skipped" >&2
	tail -n 3 "$work/log" >&2
	exit 0
}
rm -rf "$into" "$into.new"
mkdir -p "$into.new"
for package in "$work"/archives/*.deb; do
	dpkg-deb --extract "$package" "$into.new"
done
mv "$into.new" "$into"
