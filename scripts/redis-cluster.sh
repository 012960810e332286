#!/usr/bin/env bash
# A Redis Cluster of three masters for tests, in a temporary directory and on free ports of this machine.
#
#   scripts/redis-cluster.sh COMMAND…   runs the command with STRATAFS_TEST_REDIS_CLUSTER_URL set, and ends with what it returns
#   scripts/redis-cluster.sh            prints the URL and keeps the cluster until it is interrupted
#
# What it started is stopped when it ends, however it ends.
set -euo pipefail

directory=$(mktemp -d)
nodes=()
stop() {
  for node in "${nodes[@]:-}"; do
    [ -n "$node" ] && kill "$node" 2> /dev/null || true
  done
  wait 2> /dev/null || true
  rm -rf "$directory"
}
trap stop EXIT
trap 'exit 130' INT TERM

is_free() { ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

# The nodes talk to each other on the port that is 10,000 higher.
ports=()
while [ "${#ports[@]}" -lt 3 ]; do
  port=$((20000 + RANDOM % 20000))
  if is_free "$port" && is_free "$((port + 10000))"; then
    ports+=("$port")
  fi
done

for port in "${ports[@]}"; do
  mkdir "$directory/$port"
  redis-server --bind 127.0.0.1 --port "$port" --dir "$directory/$port" --cluster-enabled yes \
    --cluster-node-timeout 5000 --save '' --appendonly no > "$directory/$port/log" &
  nodes+=("$!")
done
for port in "${ports[@]}"; do
  for attempt in $(seq 100); do
    redis-cli -p "$port" ping > /dev/null 2>&1 && break
    [ "$attempt" -lt 100 ] || { cat "$directory/$port/log" >&2; exit 1; }
    sleep 0.1
  done
done
redis-cli --cluster create "${ports[@]/#/127.0.0.1:}" --cluster-replicas 0 --cluster-yes > "$directory/created" \
  || { cat "$directory/created" >&2; exit 1; }
for port in "${ports[@]}"; do
  for attempt in $(seq 100); do
    redis-cli -p "$port" cluster info | grep -q 'cluster_state:ok' && break
    [ "$attempt" -lt 100 ] || { redis-cli -p "$port" cluster info >&2; exit 1; }
    sleep 0.1
  done
done

STRATAFS_TEST_REDIS_CLUSTER_URL="redis+cluster://127.0.0.1:${ports[0]},127.0.0.1:${ports[1]}"
export STRATAFS_TEST_REDIS_CLUSTER_URL
if [ "$#" -gt 0 ]; then
  "$@"
else
  echo "$STRATAFS_TEST_REDIS_CLUSTER_URL"
  wait
fi
