#!/usr/bin/env bash
# Runs the calls of stateless agents in three processes over PostgreSQL and Redis, and kills or stalls one of them every 10 seconds:
#
#   scripts/turns.sh [SECONDS [SESSIONS [ENGINE ...]]]
#
# The default is 120 seconds with 64 sessions. The recorded history is checked at the end; see tests/turns/.
set -euo pipefail
cd "$(dirname "$0")/.."

export TREEHOLD_TURNS_SECONDS=${1:-120} TREEHOLD_TURNS_SESSIONS=${2:-64} TREEHOLD_TURNS_PAUSE=${TREEHOLD_TURNS_PAUSE:-10}
engines=("${@:3}")
if [ ${#engines[@]} = 0 ]; then engines=(postgres redis); fi
for engine in "${engines[@]}"; do
  scripts/servers.sh cargo test --no-default-features --features conformance,mysql,postgres,redis,sqlite --test turns -- \
    --include-ignored --nocapture "${engine}_sessions"
done
