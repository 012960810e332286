#!/usr/bin/env bash
# Checks README and docs. check_docs.py checks links, line widths and the names of the glossary; reference.py, pictures.py and session.py
# check that what they made is up to date. Then the examples run: run_page.py runs the commands of each page, with the binary of this checkout
# in an empty directory, and `treehold config check` runs on every `toml` block. Rust blocks are doc tests of the crate.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
python3 "$top/scripts/check_docs.py"
python3 "$top/scripts/reference.py" --check
python3 "$top/scripts/pictures.py" --check
target=${CARGO_TARGET_DIR:-$top/target}
treehold=${TREEHOLD:-$target/debug/treehold}
[ -n "${TREEHOLD:-}" ] || cargo build --quiet --manifest-path "$top/Cargo.toml" --bin treehold
TREEHOLD=$treehold python3 "$top/scripts/session.py" --check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Pages whose commands need the Python package; its own tests run them.
with_python=(docs/coming-from-deepagents.md docs/python-migrate.md docs/python-tutorial.md)

count=0
for document in "$top"/README.md "$top"/docs/*.md "$top"/docs/*/*.md; do
  page=${document#"$top/"} name=${document#"$top/"} name=${name//\//-} name=${name%.md}
  if grep -q '^```sh$' "$document" && [[ " ${with_python[*]} " != *" $page "* ]]; then
    mkdir "$work/$name" "$work/$name/home"
    cp -r "$top/examples" "$work/$name/examples"
    if ! (cd "$work/$name" && env HOME="$work/$name/home" XDG_DATA_HOME="$work/$name/home/data" XDG_CONFIG_HOME="$work/$name/home/config" \
      PATH="$(dirname "$treehold"):$PATH" python3 "$top/scripts/run_page.py" "$document") > "$work/$name.out" 2>&1; then
      echo "the commands of $document fail:"
      tail -40 "$work/$name.out"
      exit 1
    fi
    count=$((count + 1))
  fi
  # Each toml block is a complete configuration file.
  awk -v stem="$work/$name" '/^```/ { if (open) { open = 0 } else if ($0 ~ /^```toml( [^ ]+)?$/) { open = 1; file = stem "." ++n ".toml" } ; next } open { print > file }' "$document"
  for config in "$work/$name".*.toml; do
    [ -e "$config" ] || continue
    "$treehold" --config "$config" config check > /dev/null || { echo "a configuration in $document is wrong"; exit 1; }
    count=$((count + 1))
  done
done
echo "documents checked: $count"
