#!/usr/bin/env bash
# Checks and tests packages/agentrail against a real server, kills its example host at random points, and imports the built package.
# Needs Node 20 and npm. TREEHOLD names the binary, HOST_KILLS the number of kills (5), HOST_SEED repeats the points of an earlier run.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"
[ -n "${TREEHOLD:-}" ] || cargo build --quiet --all-features --bin treehold
TREEHOLD=$(realpath "${TREEHOLD:-$target/debug/treehold}")
export TREEHOLD
cd packages/agentrail
npm ci --silent --no-fund --no-audit
npm run --silent check
npm test --silent
rm -rf dist
npm run --silent build
# The package as others install it: its own files, and nothing else.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packed=$(npm pack --silent --ignore-scripts --pack-destination "$work")
mkdir -p "$work/node_modules/@treehold"
tar -xzf "$work/$packed" -C "$work"
mv "$work/package" "$work/node_modules/@treehold/agentrail"
cat > "$work/use.mjs" << 'USE'
import { TreeholdClient, TreeholdSessionStore } from "@treehold/agentrail";
if (typeof new TreeholdSessionStore(new TreeholdClient({ baseUrl: "http://127.0.0.1:1" })).loadMessages !== "function") process.exit(1);
USE
node "$work/use.mjs"
