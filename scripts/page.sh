#!/usr/bin/env bash
# Tries the page of `treehold serve` out in Chromium: it must load nothing from elsewhere, show every route, and send requests.
#
#   scripts/page.sh
#
# Installs Chromium with apt and playwright with pip into the target directory where they are missing. PYTHON (python3) names the
# interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
treehold=${TREEHOLD:-$target/debug/treehold}
tools=$target/page-tools
if ! command -v chromium > /dev/null; then
  as_root=$([ "$(id -u)" = 0 ] || echo sudo)
  $as_root apt-get update --quiet --quiet
  $as_root apt-get install --quiet --quiet --yes --no-install-recommends chromium > /dev/null
fi
[ -x "$tools/bin/python" ] || { "${PYTHON:-python3}" -m venv "$tools" && timeout 300 "$tools/bin/pip" install --quiet playwright; }

work=$(mktemp -d)
mkdir "$work/tree"
(cd "$work/tree" && exec env HOME="$work" TREEHOLD_DATA="$work/data" "$treehold" serve --listen 127.0.0.1:0 > "$work/address" 2> "$work/log") &
server=$!
trap 'kill $server 2> /dev/null || true; wait $server 2> /dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 600); do
  [ -s "$work/address" ] && break
  sleep 0.1
done
timeout 300 "$tools/bin/python" scripts/page.py "$(sed 's#/mcp$##' "$work/address")"
