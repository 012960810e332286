#!/usr/bin/env bash
# Generates a Python and a TypeScript client from the server's own /openapi.json and runs a program with each (scripts/http). Installs the
# generators under the target directory with pip and npm, once. PYTHON (python3) names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD
target="${CARGO_TARGET_DIR:-$PWD/target}"
treehold=${TREEHOLD:-$target/debug/treehold}
tools="$target/http-clients"
python="openapi-python-client==0.29.1"
node="openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 @types/node@22.19.1"
mkdir -p "$tools"
if [ "$(cat "$tools/installed" 2> /dev/null)" != "$python $node" ]; then
  "${PYTHON:-python3}" -m venv "$tools/python"
  timeout 600 "$tools/python/bin/pip" install --quiet "$python"
  echo '{"private": true, "type": "module"}' > "$tools/package.json"
  # shellcheck disable=SC2086
  (cd "$tools" && timeout 600 npm install --silent --no-fund --no-audit $node)
  echo "$python $node" > "$tools/installed"
fi
[ -n "${TREEHOLD:-}" ] || cargo build --quiet --all-features --bin treehold
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
"$tools/python/bin/python" -c 'import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1]).read())' "$base/openapi.json" > "$work/openapi.json"

# If the generator leaves anything out, it prints a warning and this step fails; how it formats its code does not matter.
"$tools/python/bin/openapi-python-client" generate --path "$work/openapi.json" --meta none --output-path "$work/treehold_client" > "$work/said" 2>&1 ||
  { cat "$work/said"; exit 1; }
if grep -E 'WARNING|Unable|Cannot parse' "$work/said"; then
  cat "$work/said"
  exit 1
fi
PYTHONPATH="$work" timeout 180 "$tools/python/bin/python" scripts/http/python_client.py "$base"

mkdir "$work/typescript"
cp scripts/http/typescript_client.ts "$work/typescript/"
cp "$tools/package.json" "$work/typescript/"
ln -s "$tools/node_modules" "$work/typescript/node_modules"
cd "$work/typescript"
# Properties with a default are optional.
node_modules/.bin/openapi-typescript "$work/openapi.json" --default-non-nullable false --output treehold.d.ts > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
node_modules/.bin/tsc --strict --target es2022 --module nodenext --skipLibCheck --types node typescript_client.ts
timeout 180 node typescript_client.js "$base"
cd "$top"
