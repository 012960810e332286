#!/usr/bin/env bash
# Adds an engine to a copy of the workspace exactly as CONTRIBUTING.md shows, with the code of examples/custom_store, and compiles the
# command with it. Fails if that takes any other change. Compiles into the target directory of the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | tar --null --files-from=- --create | tar --extract --directory "$copy"
cd "$copy"
git init --quiet
git add --all
git -c user.name=example -c user.email=example@localhost commit --quiet --message "The workspace"

# The crate: the example, which imports the two crates beneath `treehold` instead of it.
mkdir --parents crates/log/src
cp examples/custom_store/src/{engine,index,lib,log}.rs crates/log/src/
sed --in-place \
  --expression 's/treehold::store::/treehold_store::/' --expression 's/treehold::ops::/treehold_core::ops::/' \
  --expression 's/treehold::Result/treehold_core::error::Result/' --expression 's/treehold::{Error/treehold_core::error::{Error/' \
  crates/log/src/*.rs
cat > crates/log/Cargo.toml <<'TOML'
[package]
name = "treehold-log"
version.workspace = true
edition.workspace = true

[dependencies]
async-trait.workspace = true
bytes.workspace = true
jiff.workspace = true
parking_lot.workspace = true
tokio.workspace = true
treehold-core.workspace = true
treehold-store.workspace = true
TOML

# All that changes elsewhere: the patch in CONTRIBUTING.md.
awk '/^```diff$/ { within = 1; next } /^```$/ { within = 0 } within' "$top/CONTRIBUTING.md" > patch.diff
git apply patch.diff
rm patch.diff

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$top/target}
cargo check --quiet --offline -p treehold --bin treehold --no-default-features --features cli,log

git add --all
changed=$(git diff --cached --name-only | grep --invert-match --extended-regexp '^(crates/log/|Cargo.lock$)' | sort | tr '\n' ' ')
if [ "$changed" != "Cargo.toml src/config/registry.rs " ]; then
  echo "an engine takes more than CONTRIBUTING.md says: $changed"
  exit 1
fi
lines=$(git diff --cached --numstat -- src/config/registry.rs | cut --fields 1)
[ "$lines" = 1 ] || { echo "an engine takes $lines lines of the registry"; exit 1; }
