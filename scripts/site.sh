#!/usr/bin/env bash
# Builds the documentation as a site of plain files, and checks it:
#
#   scripts/site.sh [DIRECTORY]       (default: target/site)
#   scripts/site.sh tools             only installs mdBook
#
# DIRECTORY/html/index.html opens without a server and without a network. Installs mdBook with cargo if it is missing. site.py says what
# is checked.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
out=${1:-$target/site}

tools() {
  command -v mdbook > /dev/null && return
  # The profile that compiles fastest; the tool runs for a second. Its server and its file watcher are not needed.
  CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --no-default-features --features search --version '^0.5' mdbook
  export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
}

tools
[ "${1:-}" != tools ] || exit 0
python3 scripts/site.py stage "$out"
mdbook build "$out" > "$out/log" 2>&1 || { cat "$out/log"; exit 1; }
if grep -E "^ *(WARN|ERROR)" "$out/log"; then exit 1; fi
python3 scripts/site.py check "$out"
