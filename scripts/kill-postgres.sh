#!/usr/bin/env bash
# Kills a private PostgreSQL server with SIGKILL in the middle of commits, restarts it, and checks that every acknowledged batch is present
# and complete:
#
#   scripts/kill-postgres.sh [KILLS [PROGRAM]]       (default: 20 kills, and the tests `it` as cargo compiles them)
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
data=$directory/server/data
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

finish() {
  ${as:-} "$programs/pg_ctl" -D "$data" -m immediate stop > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap finish EXIT
trap 'exit 130' INT TERM

${as:-} "$programs/initdb" -D "$data" -U postgres -A trust -E UTF8 --no-sync > "$directory/initdb.log"
cat > "$directory/start" << START
${as:-} $programs/pg_ctl -D $data -w -t 120 -l $data/log -o "-p $port -h 127.0.0.1 -k $directory/server" start > /dev/null 2>&1
START
cat > "$directory/restart" << RESTART
first=\$(head -1 $data/postmaster.pid)
processes="\$first \$(ps -o pid= --ppid \$first)"
kill -9 \$processes
for process in \$processes; do while kill -0 \$process 2> /dev/null; do :; done; done
. $directory/start
RESTART
# shellcheck disable=SC1091
. "$directory/start"
export TREEHOLD_TEST_POSTGRES_URL="postgres://postgres@127.0.0.1:$port/postgres" TREEHOLD_KILLS=${1:-20}
export TREEHOLD_TEST_POSTGRES_RESTART="sh -e $directory/restart"
run=(cargo test --all-features --test it --)
[ -z "${2:-}" ] || run=("$2")
"${run[@]}" --include-ignored --exact stores::crash::killed_postgres_server_keeps_acknowledged_commits --nocapture
