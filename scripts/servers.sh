#!/usr/bin/env bash
# Runs a command with the servers that the tests of server stores need:
#
#   scripts/servers.sh [COMMAND ...]
#
# The default command runs every test, those that need a server, strace or ripgrep included; some tests need private servers and have
# scripts of their own (galera.sh, kill-postgres.sh, standby-postgres.sh).
#
# The script uses a server that answers at its usual local address. It starts one that is installed but does not answer from a
# temporary directory on a free port, and stops it at the end. It also starts a Redis Cluster of three nodes. It names every
# server that is not installed: tests that need it fail.
set -euo pipefail
cd "$(dirname "$0")/.."

directory=$(mktemp -d)
started=()

say() { printf 'servers: %s\n' "$*" >&2; }

finish() {
  for stop in "${started[@]}"; do eval "$stop" > /dev/null 2>&1 || true; done
  rm -rf "$directory"
}
trap finish EXIT
trap 'exit 130' INT TERM

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Runs a program that refuses root as a different user.
as_user() {
  local user=$1
  shift
  if [ "$(id -u)" = 0 ]; then runuser -u "$user" -- "$@"; else "$@"; fi
}

# Waits up to two minutes for a command to succeed.
until_ready() {
  for _ in $(seq 600); do
    if "$@" > /dev/null 2>&1; then return; fi
    sleep 0.2
  done
  say "a server that was started does not answer: $*"
  exit 1
}

postgres() {
  if [ -n "${TREEHOLD_TEST_POSTGRES_URL:-}" ]; then
    return
  fi
  local programs
  programs=$(ls -d /usr/lib/postgresql/*/bin /usr/local/pgsql/bin 2> /dev/null | tail -1 || true)
  local initdb=${programs:+$programs/initdb}
  initdb=${initdb:-$(command -v initdb || true)}
  if psql -h 127.0.0.1 -U postgres -c 'SELECT 1' postgres > /dev/null 2>&1; then
    : # It runs.
  elif [ -x "$initdb" ]; then
    local data=$directory/postgres port
    mkdir "$data"
    chmod 755 "$directory"
    if [ "$(id -u)" = 0 ]; then chown postgres "$data"; fi
    as_user postgres "$initdb" -D "$data/data" -U postgres -A trust -E UTF8 --no-sync > "$directory/postgres.log"
    port=$(free_port)
    as_user postgres "$(dirname "$initdb")/pg_ctl" -D "$data/data" -w -t 120 -l "$data/log" -o "-p $port -h 127.0.0.1 -k $data" start > /dev/null
    started+=("as_user postgres '$(dirname "$initdb")/pg_ctl' -D '$data/data' -m immediate stop")
    export TREEHOLD_TEST_POSTGRES_URL="postgres://postgres@127.0.0.1:$port/postgres"
  else
    say "PostgreSQL is not installed; its tests will fail"
  fi
}

mysql() {
  if [ -n "${TREEHOLD_TEST_MYSQL_URL:-}" ]; then
    return
  fi
  local server
  server=$(command -v mariadbd || command -v mysqld || true)
  if command -v mariadb-admin > /dev/null && mariadb-admin -h 127.0.0.1 -u root ping > /dev/null 2>&1; then
    : # It runs.
  elif [ -n "$server" ] && command -v mariadb-install-db > /dev/null; then
    local data=$directory/mysql port user
    user=$(id -un)
    if [ "$user" = root ]; then user=mysql; fi
    mkdir "$data"
    chmod 755 "$directory"
    if [ "$(id -u)" = 0 ]; then chown mysql "$data"; fi
    mariadb-install-db --no-defaults --datadir="$data/data" --user="$user" --auth-root-authentication-method=normal \
      --skip-test-db > "$directory/mysql.log" 2>&1
    port=$(free_port)
    as_user mysql "$server" --no-defaults --datadir="$data/data" --port="$port" --bind-address=127.0.0.1 --socket="$data/socket" \
      --pid-file="$data/pid" > "$data/log" 2>&1 &
    until_ready mariadb-admin -h 127.0.0.1 -P "$port" -u root ping
    mariadb -h 127.0.0.1 -P "$port" -u root -e 'CREATE DATABASE IF NOT EXISTS test'
    started+=("mariadb-admin -h 127.0.0.1 -P $port -u root shutdown")
    export TREEHOLD_TEST_MYSQL_URL="mysql://root@127.0.0.1:$port/test"
  else
    say "neither MariaDB nor MySQL is installed; its tests will fail"
  fi
}

redis() {
  if [ -n "${TREEHOLD_TEST_REDIS_URL:-}" ]; then
    return
  fi
  if command -v redis-cli > /dev/null && [ "$(redis-cli -h 127.0.0.1 ping 2> /dev/null)" = PONG ]; then
    : # It runs.
  elif command -v redis-server > /dev/null; then
    local port
    port=$(free_port)
    redis-server --port "$port" --bind 127.0.0.1 --dir "$directory" --save '' --daemonize yes > /dev/null
    started+=("redis-cli -p $port shutdown nosave")
    until_ready redis-cli -p "$port" ping
    export TREEHOLD_TEST_REDIS_URL="redis://127.0.0.1:$port"
  else
    say "Redis is not installed; its tests will fail"
  fi
}

postgres
mysql
redis
within=()
if [ -n "${TREEHOLD_TEST_REDIS_CLUSTER_URL:-}" ]; then
  : # It runs.
elif command -v redis-server > /dev/null; then
  within=(scripts/redis-cluster.sh)
fi
if [ $# = 0 ]; then
  set -- cargo test --all-features -- --include-ignored --skip galera --skip citus --skip hot_standby_serves_reads --skip killed_postgres_server_keeps
fi
"${within[@]}" "$@"
