#!/usr/bin/env bash
# Starts a PostgreSQL server with a hot standby, and runs the tests of the standby's responses:
#
#   scripts/standby-postgres.sh [COMMAND...]      (default: the tests, as cargo compiles them)
set -euo pipefail
cd "$(dirname "$0")/.."

programs=$(ls -d /usr/lib/postgresql/*/bin /usr/local/pgsql/bin 2> /dev/null | tail -1 || true)
programs=${programs:-$(dirname "$(command -v initdb)")}
directory=$(mktemp -d)
chmod 755 "$directory"
mkdir "$directory/server"
if [ "$(id -u)" = 0 ]; then
  # The server refuses to run as root.
  chown postgres "$directory/server"
  as="runuser -u postgres --"
fi
data=$directory/server
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
primary=$(free_port)
standby=$(free_port)

finish() {
  for name in standby primary; do ${as:-} "$programs/pg_ctl" -D "$data/$name" -m immediate stop > /dev/null 2>&1 || true; done
  rm -rf "$directory"
}
trap finish EXIT
trap 'exit 130' INT TERM

start() { ${as:-} "$programs/pg_ctl" -D "$data/$1" -w -t 120 -l "$data/$1.log" -o "-p $2 -h 127.0.0.1 -k $data" start > /dev/null; }
${as:-} "$programs/initdb" -D "$data/primary" -U postgres -A trust -E UTF8 --no-sync > "$directory/initdb.log"
start primary "$primary"
${as:-} "$programs/pg_basebackup" -h 127.0.0.1 -p "$primary" -U postgres -D "$data/standby" -R -X stream --no-sync
start standby "$standby"
export TREEHOLD_TEST_POSTGRES_URL="postgres://postgres@127.0.0.1:$primary/postgres"
export TREEHOLD_TEST_POSTGRES_STANDBY_URL="postgres://postgres@127.0.0.1:$standby/postgres"
if [ $# = 0 ]; then set -- cargo test --all-features --test it -- --include-ignored --nocapture hot_standby; fi
"$@"
