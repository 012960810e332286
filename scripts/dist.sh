#!/usr/bin/env bash
# Builds the release artifacts:
#
#   scripts/dist.sh [DIRECTORY] [TARGET ...]       (default: target/dist-out, and each target below that this machine can build)
#
# For each target the directory gets `treehold-VERSION-TARGET.tar.gz` and its SHA-256 checksum. The archive contains the stripped binary with
# all engines and servers, completions for five shells, the manual pages, the licences and the README. `treehold.rb` is a Homebrew formula for
# the archives at RELEASE_URL (default: the directory itself).
#
# A target needs its standard library (`rustup target add TARGET`) and a C compiler: musl-gcc for musl on x86-64, aarch64-linux-gnu-gcc and
# aarch64-linux-musl-gcc for arm64. DIST_BINARY is a binary for this machine to pack in place of building one.
set -euo pipefail
cd "$(dirname "$0")/.."

target_dir=${CARGO_TARGET_DIR:-$PWD/target}
out=${1:-$target_dir/dist-out}
shift || true
version=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "treehold"))')
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$out"
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT

# Prints the C compiler of a target.
compiler() {
  case $1 in
    "$host") echo cc ;;
    x86_64-unknown-linux-musl) echo musl-gcc ;;
    aarch64-unknown-linux-gnu) echo aarch64-linux-gnu-gcc ;;
    aarch64-unknown-linux-musl) echo aarch64-linux-musl-gcc ;;
    x86_64-unknown-linux-gnu) echo x86_64-linux-gnu-gcc ;;
    *) echo "cc" ;;
  esac
}

# Says why a target cannot be built here, if it cannot.
missing() {
  [ -d "$(rustc --print target-libdir --target "$1")" ] || { echo "its standard library is missing: rustup target add $1"; return; }
  command -v "$(compiler "$1")" > /dev/null || echo "its C compiler is missing: $(compiler "$1")"
}

# Builds a target and prints the path of its binary.
build() {
  local name
  name=$(tr 'a-z-' 'A-Z_' <<< "$1")
  env "CARGO_TARGET_${name}_LINKER=$(compiler "$1")" "CC_${1//-/_}=$(compiler "$1")" \
    cargo build --profile dist --locked --all-features --bin treehold --target "$1" >&2
  echo "$target_dir/$1/dist/treehold"
}

# Writes what every archive holds besides the binary, with a binary that runs here.
beside() {
  local binary=$1 shell command beneath
  mkdir -p "$staging/beside/completions" "$staging/beside/man"
  cp README.md CHANGELOG.md LICENSE LICENSE-APACHE LICENSE-MIT "$staging/beside/"
  for shell in bash elvish fish powershell zsh; do "$binary" completions "$shell" > "$staging/beside/completions/treehold.$shell"; done
  "$binary" man > "$staging/beside/man/treehold.1"
  # One page for each command that `--help` lists, and for its subcommands.
  commands() { "$binary" "$@" --help | sed -n '/^Commands:/,/^$/p' | sed -n 's/^  \([a-z][a-z-]*\).*/\1/p'; }
  for command in $(commands); do
    "$binary" man "$command" > "$staging/beside/man/treehold-$command.1"
    for beneath in $(commands "$command"); do "$binary" man "$command" "$beneath" > "$staging/beside/man/treehold-$command-$beneath.1"; done
  done
}

archive() {
  local target=$1 binary=$2 name=treehold-$version-$1
  cp -r "$staging/beside" "$staging/$name"
  install -m 755 "$binary" "$staging/$name/treehold"
  # Equal input gives an equal archive.
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -C "$staging" -cf - "$name" | gzip -9n > "$out/$name.tar.gz"
  (cd "$out" && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256")
  echo "$out/$name.tar.gz"
}

asked=("$@")
[ $# -gt 0 ] || asked=("$host")
if [ -n "${DIST_BINARY:-}" ]; then
  beside "$DIST_BINARY"
  archive "$host" "$DIST_BINARY"
else
  if [ $# = 0 ]; then
    for target in {x86_64,aarch64}-unknown-linux-{gnu,musl}; do
      [ "$target" = "$host" ] && continue
      why=$(missing "$target")
      if [ -z "$why" ]; then asked+=("$target"); else echo "not built: $target: $why"; fi
    done
  fi
  # The completions and manual pages are made by the binary of this machine.
  beside "$(build "$host")"
  for target in "${asked[@]}"; do archive "$target" "$(build "$target")"; done
fi

# The stanza of a formula for an archive.
stanza() {
  local file=treehold-$version-$1.tar.gz
  [ -e "$out/$file" ] || return 0
  printf '  on_%s do\n    on_%s do\n      url "%s/%s"\n      sha256 "%s"\n    end\n  end\n' "$2" "$3" "${RELEASE_URL:-file://$(realpath "$out")}" "$file" "$(cut -d' ' -f1 "$out/$file.sha256")"
}
{
  stanza aarch64-apple-darwin macos arm
  stanza x86_64-apple-darwin macos intel
  stanza aarch64-unknown-linux-gnu linux arm
  stanza x86_64-unknown-linux-gnu linux intel
} > "$staging/archives"
sed -e "s/@VERSION@/$version/" -e "/@ARCHIVES@/{r $staging/archives" -e 'd}' packaging/treehold.rb.in > "$out/treehold.rb"
echo "$out/treehold.rb"
