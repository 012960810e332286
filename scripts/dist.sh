#!/usr/bin/env bash
# Builds the release artifacts for this platform:
#
#   scripts/dist.sh [DIRECTORY]       (default: target/dist-out)
#
# The directory gets `treehold-VERSION-TARGET.tar.gz` and its SHA-256 checksum. The archive contains the stripped binary with all engines
# and servers, completions for five shells, the manual pages, the licences and the README.
set -euo pipefail
cd "$(dirname "$0")/.."

target_dir=${CARGO_TARGET_DIR:-target}
out=${1:-$target_dir/dist-out}
version=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "treehold"))')
target=$(rustc -vV | sed -n 's/^host: //p')
name=treehold-$version-$target

cargo build --profile dist --locked --all-features --bin treehold
binary=$target_dir/dist/treehold
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
root=$staging/$name
mkdir -p "$root/completions" "$root/man"
install -m 755 "$binary" "$root/treehold"
cp README.md CHANGELOG.md LICENSE LICENSE-APACHE LICENSE-MIT "$root/"

for shell in bash elvish fish powershell zsh; do "$binary" completions "$shell" > "$root/completions/treehold.$shell"; done
"$binary" man > "$root/man/treehold.1"
# One page for each command that `--help` lists, and for its subcommands.
commands() { "$binary" "$@" --help | sed -n '/^Commands:/,/^$/p' | sed -n 's/^  \([a-z][a-z-]*\).*/\1/p'; }
for command in $(commands); do
  "$binary" man "$command" > "$root/man/treehold-$command.1"
  for beneath in $(commands "$command"); do "$binary" man "$command" "$beneath" > "$root/man/treehold-$command-$beneath.1"; done
done

mkdir -p "$out"
# Equal input gives an equal archive.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -C "$staging" -cf - "$name" | gzip -9n > "$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256")
ls -l "$out/$name.tar.gz" "$out/$name.tar.gz.sha256"
