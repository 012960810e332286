#!/usr/bin/env bash
# Tests the HTTP API against its own description with generated requests. Fails on a server error or a response that the description does
# not name. Requests that conform to the description but are refused are accepted: paths and conditions have rules that a schema cannot
# express.
#
#   scripts/http-contract.sh [EXAMPLES]
#
# Event streams are left out, since they never end; tests/it/serve/events.rs, tests/it/serve/conversations/contents.rs and
# tests/it/traces/streams.rs test them. So are adminCompact, reflectTrace, runTrace and stopTrace, which answer 501 unless a program
# attaches a compactor or a runner.
# Installs schemathesis under the target directory with pip, once. PYTHON (python3) names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
version=4.32.5
examples="${1:-20}"
target="${CARGO_TARGET_DIR:-$PWD/target}"
venv="$target/http-contract"
[ -x "$venv/bin/st" ] || {
  "${PYTHON:-python3}" -m venv "$venv"
  timeout 600 "$venv/bin/pip" install --quiet "schemathesis==$version"
}
treehold=${TREEHOLD:-$target/debug/treehold}
[ -n "${TREEHOLD:-}" ] || cargo build --quiet --bin treehold
work=$(mktemp -d)
mkdir "$work/tree" "$work/data"
(cd "$work/tree" && exec env TREEHOLD_DATA="$work/data" "$treehold" serve --listen 127.0.0.1:0 > "$work/address" 2> "$work/log") &
server=$!
trap 'kill $server 2> /dev/null || true; wait $server 2> /dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 600); do
  [ -s "$work/address" ] && break
  sleep 0.1
done
base=$(sed 's#/mcp$##' "$work/address")
(cd "$work" && timeout 900 "$venv/bin/st" run "$base/openapi.json" --max-examples "$examples" --generation-deterministic \
  --exclude-operation-id followEvents --exclude-operation-id followSession --exclude-operation-id adminCompact \
  --exclude-operation-id watchTrace --exclude-operation-id reflectTrace --exclude-operation-id runTrace --exclude-operation-id stopTrace \
  --exclude-checks positive_data_acceptance --suppress-health-check all > "$work/report" 2>&1) || {
  cat "$work/report" "$work/log"
  exit 1
}
tail -n 4 "$work/report"
