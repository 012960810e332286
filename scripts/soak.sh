#!/usr/bin/env bash
# Runs random histories that the tests have not run: scripts/soak.sh [rounds]
#
# Each round uses a new seed and more cases than the tests do: every model test, also on server stores if they are available, and the
# property tests of the library. It prints the seed first; set PROPTEST_RNG_SEED to repeat a failed round. A round takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

for round in $(seq "${1:-1}"); do
  export PROPTEST_RNG_SEED="$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')"
  echo "round $round: seed $PROPTEST_RNG_SEED"
  PROPTEST_CASES="${SOAK_LAWS:-1000}" cargo test --quiet --all-features --lib -- laws segment
  TREEHOLD_MODEL_CASES="${SOAK_CASES:-300}" scripts/servers.sh cargo test --quiet --all-features --test model
done
echo "soak: nothing found"
