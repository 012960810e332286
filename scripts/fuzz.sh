#!/usr/bin/env bash
# Runs every fuzz target from its corpus for a bounded number of runs: scripts/fuzz.sh [runs]
#
# Without a number, each target runs 2000 times, for at most 15 seconds. The runs are the same each time unless FUZZ_SEED is set:
# FUZZ_SEED=$RANDOM scripts/fuzz.sh 1000000. Findings are saved in fuzz/artifacts; the corpus stays unchanged. Without a nightly compiler
# the script reports that it skips the targets, and succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."

runs="${1:-2000}"
seconds_max=15
[ $# -eq 0 ] || seconds_max=0
target_dir="${CARGO_TARGET_DIR:-$PWD/fuzz/target}/fuzz"

if ! cargo +nightly --version > /dev/null 2>&1; then
  echo "skipped: no nightly toolchain, which fuzzing needs; rustup toolchain install nightly --profile minimal"
  exit 0
fi
if ! command -v cargo-fuzz > /dev/null; then
  # The profile that compiles fastest; the tool only starts others.
  CARGO_TARGET_DIR="$(dirname "$target_dir")/tools" CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug cargo-fuzz
fi

# The library has no unsafe code, so the address sanitizer would only slow it down.
cargo +nightly fuzz build --sanitizer none --target-dir "$target_dir"

found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
for target in $(cargo +nightly fuzz list); do
  # New inputs go to the first directory; the second is only read.
  mkdir -p "$found/$target" "fuzz/artifacts/$target"
  echo "fuzz $target: $runs runs"
  "$target_dir/$host/release/$target" "$found/$target" "fuzz/corpus/$target" -seed="${FUZZ_SEED:-1}" -runs="$runs" \
    -max_total_time="$seconds_max" -len_control=0 -max_len=4096 -timeout=20 -rss_limit_mb=2048 -artifact_prefix="fuzz/artifacts/$target/" \
    -verbosity=0 -print_final_stats=0 2> "$found/$target.log" || { tail -60 "$found/$target.log"; exit 1; }
done
echo "fuzz: nothing found"
