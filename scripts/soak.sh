#!/usr/bin/env bash
# Tries histories that no run of the tests has tried yet: scripts/soak.sh [rounds]
#
# Each round takes another seed and more cases than the tests do: every model test, on the stores of servers too where they are,
# and the laws of the library. The seed is printed first; PROPTEST_RNG_SEED=it repeats a round that failed. A round takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

for round in $(seq "${1:-1}"); do
  export PROPTEST_RNG_SEED="$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')"
  echo "round $round: seed $PROPTEST_RNG_SEED"
  PROPTEST_CASES="${SOAK_LAWS:-1000}" cargo test --quiet --all-features --lib -- laws segment
  TREEHOLD_MODEL_CASES="${SOAK_CASES:-300}" scripts/servers.sh cargo test --quiet --all-features --test model
done
echo "soak: nothing found"
