#!/usr/bin/env bash
# Runs a command with a Redis Cluster of some masters without replicas, for measurements of what more nodes add (`examples/fleet`).
#
#   scripts/redis-masters.sh MASTERS COMMAND…
#
# TREEHOLD_TEST_REDIS_CLUSTER_URL is the URL of the first master. SHARE is the most that each master gets of one processor, in percent and at
# least 5, so that one machine stands for several of equal strength: it needs root and control groups. Without it there is no limit.
# Everything that was started is stopped at the end.
set -euo pipefail
masters=$1
shift

directory=$(mktemp -d)
processes=()
groups=()
stop() {
  for process in "${processes[@]:-}"; do
    [ -n "$process" ] && kill "$process" 2> /dev/null || true
  done
  wait 2> /dev/null || true
  for group in "${groups[@]:-}"; do [ -z "$group" ] || rmdir "$group"; done
  rm -rf "$directory"
}
trap stop EXIT
trap 'exit 130' INT TERM

is_free() { ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
until_true() {
  for _ in $(seq 200); do
    if "$@" > /dev/null 2>&1; then return; fi
    sleep 0.1
  done
  return 1
}
answers() { [ "$(redis-cli -p "$1" ping)" = PONG ]; }
knows_all() { [ "$(redis-cli -p "$1" cluster info | tr -d '\r' | grep -c -e 'cluster_state:ok' -e "cluster_known_nodes:$masters")" = 2 ]; }

# Limits a process to its share, in parts of 20 ms.
hold() {
  local root=/sys/fs/cgroup group
  [ ! -d "$root/cpu" ] || root=$root/cpu
  group=$root/treehold-master-$1
  mkdir "$group"
  groups+=("$group")
  if [ -e "$group/cpu.cfs_quota_us" ]; then
    echo 20000 > "$group/cpu.cfs_period_us"
    echo $((SHARE * 200)) > "$group/cpu.cfs_quota_us"
  else
    echo +cpu > "$root/cgroup.subtree_control"
    echo "$((SHARE * 200)) 20000" > "$group/cpu.max"
  fi
  echo "$1" > "$group/cgroup.procs"
}

ports=()
while [ "${#ports[@]}" -lt "$masters" ]; do
  port=$((20000 + RANDOM % 2700))
  if [[ " ${ports[*]:-} " != *" $port "* ]] && is_free "$port" && is_free "$((port + 10000))"; then ports+=("$port"); fi
done
for port in "${ports[@]}"; do
  mkdir "$directory/$port"
  redis-server --bind 127.0.0.1 --port "$port" --dir "$directory/$port" --cluster-enabled yes --cluster-node-timeout 60000 --save '' \
    --appendonly no > "$directory/$port/log" &
  processes+=("$!")
  [ -z "${SHARE:-}" ] || hold "$!"
done
for port in "${ports[@]}"; do until_true answers "$port"; done
for number in "${!ports[@]}"; do
  redis-cli -p "${ports[$number]}" cluster addslotsrange $((16384 * number / masters)) $((16384 * (number + 1) / masters - 1)) > "$directory/slots"
  redis-cli -p "${ports[0]}" cluster meet 127.0.0.1 "${ports[$number]}" > "$directory/met"
done
for port in "${ports[@]}"; do until_true knows_all "$port"; done

TREEHOLD_TEST_REDIS_CLUSTER_URL="redis+cluster://127.0.0.1:${ports[0]}"
export TREEHOLD_TEST_REDIS_CLUSTER_URL
"$@"
