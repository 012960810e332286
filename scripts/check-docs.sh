#!/usr/bin/env bash
# Checks README and docs. check_docs.py checks links, line widths and the names of the glossary. Then the examples run: every `sh` block of
# a page, in order, with the binary of this checkout in an empty directory, and `treehold config check` on every `toml` block. Rust blocks
# are doc tests of the crate.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
python3 "$top/scripts/check_docs.py"
target=${CARGO_TARGET_DIR:-$top/target}
treehold=${TREEHOLD:-$target/debug/treehold}
[ -n "${TREEHOLD:-}" ] || cargo build --quiet --manifest-path "$top/Cargo.toml" --bin treehold
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints the blocks of one language of a document, in order.
blocks() { awk -v want="$2" '/^```/ { if (open) { open = 0 } else if ($0 == "```" want) { open = 1 } ; next } open' "$1"; }

count=0
for document in "$top"/README.md "$top"/docs/*.md "$top"/docs/*/*.md; do
  name=${document#"$top/"} name=${name//\//-} name=${name%.md}
  blocks "$document" sh > "$work/$name.sh"
  if [ -s "$work/$name.sh" ]; then
    mkdir "$work/$name" "$work/$name/home"
    cp -r "$top/examples" "$work/$name/examples"
    if ! (cd "$work/$name" && env HOME="$work/$name/home" XDG_DATA_HOME="$work/$name/home/data" XDG_CONFIG_HOME="$work/$name/home/config" \
      PATH="$(dirname "$treehold"):$PATH" bash -euo pipefail "$work/$name.sh") > "$work/$name.out" 2>&1; then
      echo "the commands of $document fail:"
      tail -40 "$work/$name.out"
      exit 1
    fi
    count=$((count + 1))
  fi
  # Each toml block is a complete configuration file.
  awk -v stem="$work/$name" '/^```/ { if (open) { open = 0 } else if ($0 == "```toml") { open = 1; file = stem "." ++n ".toml" } ; next } open { print > file }' "$document"
  for config in "$work/$name".*.toml; do
    [ -e "$config" ] || continue
    "$treehold" --config "$config" config check > /dev/null || { echo "a configuration in $document is wrong"; exit 1; }
    count=$((count + 1))
  done
done
echo "documents checked: $count"
