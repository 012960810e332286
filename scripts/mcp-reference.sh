#!/usr/bin/env bash
# Compares `treehold mcp --tools reference` with the reference filesystem server from npm, call by call on the same tree.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}
tools=${TREEHOLD_MCP_TOOLS:-$target/mcp-clients}
mkdir -p "$tools"
"$top/scripts/mcp/install.sh" "$tools"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$top/scripts/mcp/reference.py" "$work" "${TREEHOLD:-$target/debug/treehold}" \
  "$tools/node_modules/.bin/node" "$tools/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
