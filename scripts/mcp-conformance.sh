#!/usr/bin/env bash
# Runs the protocol's public conformance suites against the server, with the requirements of 2026-07-28 and of 2025-11-25.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}
tools=${TREEHOLD_MCP_TOOLS:-$target/mcp-clients}
treehold=${TREEHOLD:-$target/debug/treehold}
mkdir -p "$tools"
"$top/scripts/mcp/install.sh" "$tools"
"$treehold" mcp --conformance-fixtures < /dev/null || { echo "the binary needs the feature conformance: cargo build --all-features"; exit 1; }
work=$(mktemp -d)
served=
trap '[ -z "$served" ] || kill "$served" 2> /dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/here"
(cd "$work/here" && TREEHOLD_DATA="$work/data" exec "$treehold" serve --listen 127.0.0.1:0 --conformance-fixtures) > "$work/address" &
served=$!
for _ in $(seq 600); do [ -s "$work/address" ] && break; sleep 0.1; done
url=$(head -n 1 "$work/address")
for requirements in 2026-07-28 2025-11-25; do
  echo "--- requirements of $requirements"
  if ! (cd "$work" && timeout 300 "$tools/node_modules/.bin/node" "$tools/node_modules/@modelcontextprotocol/conformance/dist/index.js" \
    server --url "$url" --requirements "$requirements" -o "$work/out-$requirements" > "$work/$requirements.log" 2>&1); then
    sed -n '/SUMMARY/,$p' "$work/$requirements.log"
    exit 1
  fi
  sed -n '/^Total/p' "$work/$requirements.log"
done
echo "conformance: ok"
