#!/usr/bin/env bash
# Starts a Redis Cluster of three masters with a replica each for tests, in a temporary directory and on free ports of this machine.
#
#   scripts/redis-cluster.sh COMMAND…   runs the command with TREEHOLD_TEST_REDIS_CLUSTER_URL set, and returns its exit code
#   scripts/redis-cluster.sh            prints the URL and keeps the cluster until interrupted
#
# Everything it started is stopped when it ends, however it ends.
set -euo pipefail

directory=$(mktemp -d)
nodes=()
stop_nodes() {
  for node in "${nodes[@]:-}"; do
    [ -n "$node" ] && kill "$node" 2> /dev/null || true
  done
  wait 2> /dev/null || true
  nodes=()
}
stop() {
  stop_nodes
  rm -rf "$directory"
}
trap stop EXIT
trap 'exit 130' INT TERM

is_free() { ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

# Waits up to 30 seconds for a command to succeed.
until_true() {
  for _ in $(seq 300); do
    if "$@" > /dev/null 2>&1; then return; fi
    sleep 0.1
  done
  return 1
}

answers() { [ "$(redis-cli -p "$1" ping)" = PONG ]; }
is_in_sync() { redis-cli -p "$1" info replication | grep -q 'master_link_status:up'; }
is_joined() { redis-cli -p "$1" cluster info | grep -q 'cluster_state:ok'; }

# Starts six servers that form a cluster. Fails if another process takes a port first.
start() {
  # The cluster bus uses the port plus 10,000. Both ranges are below the ephemeral ports.
  ports=()
  while [ "${#ports[@]}" -lt 6 ]; do
    port=$((20000 + RANDOM % 2700))
    if [[ " ${ports[*]:-} " != *" $port "* ]] && is_free "$port" && is_free "$((port + 10000))"; then
      ports+=("$port")
    fi
  done
  rm -rf "${directory:?}"/*
  for port in "${ports[@]}"; do
    mkdir "$directory/$port"
    redis-server --bind 127.0.0.1 --port "$port" --dir "$directory/$port" --cluster-enabled yes \
      --cluster-node-timeout 5000 --save '' --appendonly no > "$directory/$port/log" &
    nodes+=("$!")
  done
  for port in "${ports[@]}"; do until_true answers "$port" || return 1; done
  # Without a limit, it would wait forever for nodes that never join.
  timeout 60 redis-cli --cluster create "${ports[@]/#/127.0.0.1:}" --cluster-replicas 1 --cluster-yes > "$directory/created" || return 1
  for port in "${ports[@]}"; do until_true is_joined "$port" || return 1; done
  # A replica that has not caught up cannot take over.
  for port in "${ports[@]:3}"; do until_true is_in_sync "$port" || return 1; done
}

attempts_left=5
until start; do
  attempts_left=$((attempts_left - 1))
  if [ "$attempts_left" = 0 ]; then
    tail -n 5 "$directory"/*/log "$directory/created" >&2 || true
    exit 1
  fi
  stop_nodes
done

TREEHOLD_TEST_REDIS_CLUSTER_URL="redis+cluster://127.0.0.1:${ports[0]},127.0.0.1:${ports[1]}"
export TREEHOLD_TEST_REDIS_CLUSTER_URL
if [ "$#" -gt 0 ]; then
  "$@"
else
  echo "$TREEHOLD_TEST_REDIS_CLUSTER_URL"
  wait
fi
