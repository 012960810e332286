#!/usr/bin/env bash
# Starts a Citus cluster of a coordinator and two workers for tests, in a temporary directory and on free ports of this machine.
#
#   scripts/citus.sh COMMAND…   runs the command with the variables below set, and returns its exit code
#   scripts/citus.sh            prints the URL and keeps the cluster until interrupted
#
# TREEHOLD_TEST_POSTGRES_URL is the URL of the coordinator, and TREEHOLD_TEST_CITUS=1 makes the tests distribute the tables of each
# store that they make. The library citus.so must be installed for one of the PostgreSQL servers below /usr/lib/postgresql.
#
# Everything it started is stopped when it ends, however it ends.
set -euo pipefail

binaries=
for library in /usr/lib/postgresql/*/lib/citus.so; do
  if [ -e "$library" ]; then binaries=$(dirname "$(dirname "$library")")/bin; fi
done
if [ -z "$binaries" ]; then
  echo "citus: install PostgreSQL with the extension Citus" >&2
  exit 1
fi

directory=$(mktemp -d)
nodes=(coordinator worker1 worker2)
# The server refuses to run as root.
as_user() { if [ "$(id -u)" = 0 ]; then (cd / && runuser -u postgres -- "$@"); else "$@"; fi; }
if [ "$(id -u)" = 0 ]; then chown postgres "$directory"; fi
stop() {
  for node in "${nodes[@]}"; do
    as_user "$binaries/pg_ctl" -D "$directory/$node" -m immediate -w stop > /dev/null 2>&1 || true
  done
  rm -rf "$directory"
}
trap stop EXIT
trap 'exit 130' INT TERM

is_free() { ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
free_port() {
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 12000))
    if is_free "$port"; then
      echo "$port"
      return
    fi
  done
  echo "citus: found no free port" >&2
  return 1
}

ports=()
for node in "${nodes[@]}"; do
  data=$directory/$node
  port=$(free_port)
  as_user "$binaries/initdb" -D "$data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync > /dev/null
  cat >> "$data/postgresql.conf" << CONF
shared_preload_libraries = 'citus'
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = '$directory'
max_connections = 200
max_prepared_transactions = 200
wal_level = logical
fsync = ${TREEHOLD_CITUS_FSYNC:-off}
citus.shard_count = ${TREEHOLD_CITUS_SHARDS:-4}
citus.enable_statistics_collection = off
citus.node_conninfo = 'sslmode=prefer'
CONF
  as_user "$binaries/pg_ctl" -D "$data" -w -l "$directory/$node.log" start > /dev/null
  "$binaries/psql" -qX -h 127.0.0.1 -p "$port" -U postgres -d postgres -c 'CREATE EXTENSION citus'
  ports+=("$port")
done
"$binaries/psql" -qXAt -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "${ports[0]}" -U postgres -d postgres > /dev/null << SQL
SELECT citus_set_coordinator_host('127.0.0.1', ${ports[0]});
SELECT citus_add_node('127.0.0.1', ${ports[1]});
SELECT citus_add_node('127.0.0.1', ${ports[2]});
SQL

export TREEHOLD_TEST_POSTGRES_URL="postgres://postgres@127.0.0.1:${ports[0]}/postgres"
export TREEHOLD_TEST_CITUS=1
if [ $# = 0 ]; then
  echo "$TREEHOLD_TEST_POSTGRES_URL"
  while :; do sleep 3600; done
fi
"$@"
