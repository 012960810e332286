#!/usr/bin/env bash
# Drives the server with common clients: Python (every mode), TypeScript, LangChain's adapters, the OpenAI Agents SDK and the Inspector,
# over stdio and HTTP. Installs them under the target directory, once.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}
tools=${TREEHOLD_MCP_TOOLS:-$target/mcp-clients}
treehold=${TREEHOLD:-$target/debug/treehold}
mkdir -p "$tools"
cd "$tools"
"$top/scripts/mcp/install.sh" "$tools"
export PATH="$tools/node_modules/.bin:$PATH"
work=$(mktemp -d)
served=
trap '[ -z "$served" ] || kill "$served" 2> /dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/here"
export TREEHOLD_DATA="$work/data" HOME="$work"
cp "$top/README.md" "$work/here/"
(cd "$work/here" && exec "$treehold" serve --listen 127.0.0.1:0) > "$work/address" &
served=$!
for _ in $(seq 600); do [ -s "$work/address" ] && break; sleep 0.1; done
url=$(head -n 1 "$work/address")
failures=0
attempt() {
  echo "--- $*"
  timeout 120 "$@" > "$work/out" 2>&1 && tail -n 1 "$work/out" || { failures=$((failures + 1)); echo "FAILED: $*"; tail -n 25 "$work/out"; }
}
for mode in 2026-07-28 auto legacy; do
  attempt "$tools/python/bin/python" "$top/scripts/mcp/python_client.py" "$mode" "$url"
  attempt "$tools/python/bin/python" "$top/scripts/mcp/python_client.py" "$mode" "$treehold" mcp
done
for server in "$url" "$treehold mcp"; do
  # shellcheck disable=SC2086
  attempt "$tools/langchain/bin/python" "$top/scripts/mcp/langchain_client.py" $server
  # shellcheck disable=SC2086
  attempt "$tools/openai-agents/bin/python" "$top/scripts/mcp/openai_agents_client.py" $server
  for mode in auto legacy; do
    # shellcheck disable=SC2086
    attempt node "$top/scripts/mcp/typescript_client.mjs" "$mode" $server
  done
  for era in modern legacy; do
    # shellcheck disable=SC2086
    attempt mcp-inspector --cli $server --protocol-era "$era" --method tools/list --strict
    # shellcheck disable=SC2086
    attempt mcp-inspector --cli $server --protocol-era "$era" --method tools/call --tool-name ls --tool-arg path=/ --format json
  done
  # shellcheck disable=SC2086
  attempt mcp-inspector --cli $server --protocol-era modern --method resources/directory/read --uri vfs:///memories --format json
done
echo "clients that failed: $failures"
[ "$failures" = 0 ]
