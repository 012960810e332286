#!/usr/bin/env bash
# Measures what one tenant's attacks do to another tenant's reads:
#
#   scripts/attacks.sh [PROGRAM ...]       (default: target/debug/treehold)
#
# For each program it starts `serve --tokens`. One tenant sends each attack while another reads a small file steadily. It prints the median
# and the 99th percentile of these reads, their failures, and the outcome of the attack. Give two programs to compare them.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=("$@")
[ ${#programs[@]} -gt 0 ] || programs=(target/debug/treehold)
for program in "${programs[@]}"; do
  printf '%s\n' "$program"
  python3 scripts/attacks.py "$program"
done
