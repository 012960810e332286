#!/usr/bin/env bash
# Kills the writer of an embedded store at each of its system calls, fails each of them with ENOSPC and EIO, cuts the power once the next
# process has shown what a killed one left, and fills the disk under `serve`, `run` and `mcp`. Where the store is SQLite, it also cuts the
# power while the store is made. Fails if an acknowledged or shown change is lost or torn, or a store cannot be opened again. The writer of
# `-past` changes files that keep their past, which must be whole too.
#
#   scripts/faults.sh [ENGINE...]                 (default: sqlite sqlite-directory sled sqlite-past sled-past)
#
# `sqlite-directory-past` is the only other engine.
# POINTS (all) is how many system calls of each kind and phase are tested, evenly spread. LEVELS (16) is the number of disk sizes, 0 for
# none. JOBS (2) run in parallel. SEED (0) shifts the selection. TREEHOLD names the binary if it is built already, with
# `examples/store_powerloss` beside it. Needs strace, which is installed if it is missing, and root for the disks.
set -euo pipefail
cd "$(dirname "$0")/.."
engines=("$@")
[ "${#engines[@]}" -gt 0 ] || engines=(sqlite sqlite-directory sled sqlite-past sled-past)
if ! command -v strace > /dev/null; then
  as_root=$([ "$(id -u)" = 0 ] || echo sudo)
  $as_root apt-get update --quiet --quiet
  $as_root apt-get install --quiet --quiet --yes --no-install-recommends strace > /dev/null
fi
if [ -z "${TREEHOLD:-}" ]; then
  cargo build --quiet --all-features --bin treehold --example store_powerloss
  TREEHOLD=${CARGO_TARGET_DIR:-target}/debug/treehold
fi
exec "${PYTHON:-python3}" scripts/faults.py --writer "$(dirname "$TREEHOLD")/examples/store_powerloss" --program "$TREEHOLD" \
  --points "${POINTS:-0}" --levels "${LEVELS:-16}" --jobs "${JOBS:-2}" --seed "${SEED:-0}" "${engines[@]}"
