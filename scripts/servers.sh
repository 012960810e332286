#!/usr/bin/env bash
# Runs a command with the servers that the tests of server stores need:
#
#   scripts/servers.sh [COMMAND ...]       (default: cargo test --all-features)
#
# A server that answers at its usual local place is used. One that is installed and does not answer is started from a
# temporary directory on a free port, and stopped at the end; so is a Redis Cluster of three. What is installed is required: a
# test that is skipped for want of it fails. What is not installed is said, and its tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

directory=$(mktemp -d)
started=()
require=()

say() { printf 'servers: %s\n' "$*" >&2; }

finish() {
  for stop in "${started[@]}"; do eval "$stop" > /dev/null 2>&1 || true; done
  rm -rf "$directory"
}
trap finish EXIT
trap 'exit 130' INT TERM

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Runs a program as a user that is not root, where the program refuses root.
as_user() {
  local user=$1
  shift
  if [ "$(id -u)" = 0 ]; then runuser -u "$user" -- "$@"; else "$@"; fi
}

# Waits until a command succeeds; 30 seconds at most.
until_ready() {
  for _ in $(seq 150); do
    if "$@" > /dev/null 2>&1; then return; fi
    sleep 0.2
  done
  say "a server that was started does not answer: $*"
  exit 1
}

postgres() {
  if [ -n "${STRATAFS_TEST_POSTGRES_URL:-}" ]; then
    require+=(postgres)
    return
  fi
  local programs
  programs=$(ls -d /usr/lib/postgresql/*/bin /usr/local/pgsql/bin 2> /dev/null | tail -1 || true)
  local initdb=${programs:+$programs/initdb}
  initdb=${initdb:-$(command -v initdb || true)}
  if psql -h 127.0.0.1 -U postgres -c 'SELECT 1' postgres > /dev/null 2>&1; then
    require+=(postgres)
  elif [ -x "$initdb" ]; then
    local data=$directory/postgres port
    port=$(free_port)
    mkdir "$data"
    chmod 755 "$directory"
    if [ "$(id -u)" = 0 ]; then chown postgres "$data"; fi
    as_user postgres "$initdb" -D "$data/data" -U postgres -A trust -E UTF8 --no-sync > "$directory/postgres.log"
    as_user postgres "$(dirname "$initdb")/pg_ctl" -D "$data/data" -w -l "$data/log" -o "-p $port -h 127.0.0.1 -k $data" start > /dev/null
    started+=("as_user postgres '$(dirname "$initdb")/pg_ctl' -D '$data/data' -m immediate stop")
    export STRATAFS_TEST_POSTGRES_URL="postgres://postgres@127.0.0.1:$port/postgres"
    require+=(postgres)
  else
    say "PostgreSQL is not installed; its tests are skipped"
  fi
}

mysql() {
  if [ -n "${STRATAFS_TEST_MYSQL_URL:-}" ]; then
    require+=(mysql)
    return
  fi
  local server
  server=$(command -v mariadbd || command -v mysqld || true)
  if command -v mariadb-admin > /dev/null && mariadb-admin -h 127.0.0.1 -u root ping > /dev/null 2>&1; then
    require+=(mysql)
  elif [ -n "$server" ] && command -v mariadb-install-db > /dev/null; then
    local data=$directory/mysql port user
    port=$(free_port)
    user=$(id -un)
    if [ "$user" = root ]; then user=mysql; fi
    mkdir "$data"
    chmod 755 "$directory"
    if [ "$(id -u)" = 0 ]; then chown mysql "$data"; fi
    mariadb-install-db --no-defaults --datadir="$data/data" --user="$user" --auth-root-authentication-method=normal \
      --skip-test-db > "$directory/mysql.log" 2>&1
    as_user mysql "$server" --no-defaults --datadir="$data/data" --port="$port" --bind-address=127.0.0.1 --socket="$data/socket" \
      --pid-file="$data/pid" > "$data/log" 2>&1 &
    until_ready mariadb-admin -h 127.0.0.1 -P "$port" -u root ping
    mariadb -h 127.0.0.1 -P "$port" -u root -e 'CREATE DATABASE IF NOT EXISTS test'
    started+=("mariadb-admin -h 127.0.0.1 -P $port -u root shutdown")
    export STRATAFS_TEST_MYSQL_URL="mysql://root@127.0.0.1:$port/test"
    require+=(mysql)
  else
    say "neither MariaDB nor MySQL is installed; its tests are skipped"
  fi
}

redis() {
  if [ -n "${STRATAFS_TEST_REDIS_URL:-}" ]; then
    require+=(redis)
    return
  fi
  if command -v redis-cli > /dev/null && [ "$(redis-cli -h 127.0.0.1 ping 2> /dev/null)" = PONG ]; then
    require+=(redis)
  elif command -v redis-server > /dev/null; then
    local port
    port=$(free_port)
    redis-server --port "$port" --bind 127.0.0.1 --dir "$directory" --save '' --daemonize yes > /dev/null
    started+=("redis-cli -p $port shutdown nosave")
    until_ready redis-cli -p "$port" ping
    export STRATAFS_TEST_REDIS_URL="redis://127.0.0.1:$port"
    require+=(redis)
  else
    say "Redis is not installed; its tests are skipped"
  fi
}

postgres
mysql
redis
within=()
if [ -n "${STRATAFS_TEST_REDIS_CLUSTER_URL:-}" ]; then
  require+=(redis_cluster)
elif command -v redis-server > /dev/null; then
  within=(scripts/redis-cluster.sh)
  require+=(redis_cluster)
fi
export STRATAFS_TEST_REQUIRE="${require[*]:-}"
say "required: ${STRATAFS_TEST_REQUIRE:-nothing}"
if [ $# = 0 ]; then set -- cargo test --all-features; fi
"${within[@]}" "$@"
