#!/usr/bin/env bash
# Starts three replicas of `treehold serve` over one PostgreSQL, with a proxy in front of them:
#
#   scripts/replicas.sh [COMMAND ...]
#
# Without a command it prints example requests and runs until ctrl-C. With one it runs that command with TREEHOLD_BASE (the proxy),
# TREEHOLD_REPLICAS (the three replicas) and TREEHOLD_TOKEN in its environment. TREEHOLD_POSTGRES_URL names the database; without it, a
# private server is started in a temporary directory and removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --quiet --all-features --bin treehold --example proxy
treehold=$target/debug/treehold
directory=$(mktemp -d)
chmod 755 "$directory"
started=()

finish() {
  for process in "${started[@]}"; do kill "$process" 2> /dev/null || true; done
  for process in "${started[@]}"; do wait "$process" 2> /dev/null || true; done
  [ -z "${programs:-}" ] || ${as:-} "$programs/pg_ctl" -D "$directory/server/data" -m immediate stop > /dev/null 2>&1 || true
  rm -rf "$directory"
}
trap finish EXIT
trap 'exit 130' INT TERM

url=${TREEHOLD_POSTGRES_URL:-}
if [ -z "$url" ]; then
  programs=$(ls -d /usr/lib/postgresql/*/bin /usr/local/pgsql/bin 2> /dev/null | tail -1 || true)
  programs=${programs:-$(dirname "$(command -v initdb)")}
  data=$directory/server/data
  mkdir "$directory/server"
  # The server refuses to run as root.
  if [ "$(id -u)" = 0 ]; then
    chown postgres "$directory/server"
    as="runuser -u postgres --"
  fi
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  ${as:-} "$programs/initdb" -D "$data" -U postgres -A trust -E UTF8 --no-sync > "$directory/initdb.log"
  ${as:-} "$programs/pg_ctl" -D "$data" -w -l "$data/log" -o "-p $port -h 127.0.0.1 -k $directory/server" start > /dev/null
  url="postgres://postgres@127.0.0.1:$port/postgres"
fi

cat > "$directory/treehold.toml" << TOML
data = "$directory"
[stores.default]
url = "env:TREEHOLD_STORE_URL"
[routes."/memories"]
type = "store"
store = "default"
namespace = "{tenant}/{user}/memories"
TOML
export TREEHOLD_STORE_URL=$url TREEHOLD_CONFIG=$directory/treehold.toml
TREEHOLD_TOKEN=$("$treehold" token create --access admin --label replicas | head -n 1)
export TREEHOLD_TOKEN

# Starts a program and waits until it prints its address; sets `said`.
start() {
  local out=$1
  shift
  (cd "$directory" && exec "$@") > "$out" 2>&1 &
  started+=($!)
  for _ in $(seq 100); do
    said=$(grep -o 'http://[0-9.:]*' "$out" | head -n 1 || true)
    [ -z "$said" ] || return 0
    sleep 0.1
  done
  cat "$out" >&2
  exit 1
}

TREEHOLD_REPLICAS=
for number in 1 2 3; do
  start "$directory/replica-$number" "$treehold" serve --tokens --listen 127.0.0.1:0
  TREEHOLD_REPLICAS="$TREEHOLD_REPLICAS $said"
done
# shellcheck disable=SC2086
start "$directory/proxy" "$target/debug/examples/proxy" 127.0.0.1:0 ${TREEHOLD_REPLICAS//http:\/\//}
TREEHOLD_BASE=$said
export TREEHOLD_BASE TREEHOLD_REPLICAS
if [ $# != 0 ]; then
  "$@"
  exit
fi
cat << SAY
the replicas:$TREEHOLD_REPLICAS (processes ${started[*]:0:3})
the proxy:    $TREEHOLD_BASE

  auth='Authorization: Bearer $TREEHOLD_TOKEN'
  curl -H "\$auth" -X PUT --data-binary 'plan one' $TREEHOLD_BASE/v1/threads/monday/fs/plan
  curl -H "\$auth" ${TREEHOLD_REPLICAS##* }/v1/threads/monday/fs/plan          # written by one, read from another
  curl -H "\$auth" -H 'Idempotency-Key: 1' --data-binary 'a line' $TREEHOLD_BASE/v1/threads/monday/fs/log
  curl -H "\$auth" -H 'Idempotency-Key: 1' --data-binary 'a line' $TREEHOLD_BASE/v1/threads/monday/fs/log   # the same answer, one line
  kill -9 ${started[0]}                                    # the others go on with its threads
  curl -H "\$auth" $TREEHOLD_BASE/v1/threads/monday/checkpoints

ctrl-C stops all.
SAY
wait "${started[3]}"
