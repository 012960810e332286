#!/usr/bin/env bash
# Simulates power loss of the embedded stores, and fails if an acknowledged batch is lost or torn.
#
#   scripts/powerloss.sh HARNESS [ENGINE...]      or POWERLOSS_HARNESS=HARNESS scripts/powerloss.sh
#
# HARNESS is a program that drives examples/store_powerloss.rs: HARNESS BINARY ENGINE WORKDIR [--batches N] [--cuts N] [--strict]. It
# records the system calls of the writer (which needs strace), reconstructs the possible disk contents at each cut, and prints a line with
# the result for each kind of reconstruction. CUTS (50) and BATCHES (80) set the amount of work, POWERLOSS_PROFILE (debug) the build.
set -euo pipefail
cd "$(dirname "$0")/.."
harness="${1:-${POWERLOSS_HARNESS:-}}"
[ -n "$harness" ] || { echo "name the harness: scripts/powerloss.sh HARNESS" >&2; exit 2; }
shift || true
engines=("$@")
[ "${#engines[@]}" -gt 0 ] || engines=(sqlite sqlite-directory sled)
command -v strace > /dev/null || { echo "strace is not installed" >&2; exit 2; }

profile="${POWERLOSS_PROFILE:-debug}"
case "$profile" in
  release) cargo build --quiet --release --example store_powerloss ;;
  *) cargo build --quiet --example store_powerloss ;;
esac
binary="${CARGO_TARGET_DIR:-target}/$profile/examples/store_powerloss"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

bad=0
for engine in "${engines[@]}"; do
  for rule in "" --strict; do
    echo "== $engine ${rule:-ext4-like}"
    # shellcheck disable=SC2086
    found="$("$harness" "$binary" "$engine" "$work/state" --batches "${BATCHES:-80}" --cuts "${CUTS:-50}" $rule)"
    echo "$found"
    if grep -qE "acked data lost|torn batch|open error" <<< "$found"; then bad=1; fi
  done
done
exit "$bad"
