#!/usr/bin/env bash
# Creates the stores in tests/fixtures/layout1/ for the tests of `treehold store migrate`:
#
#   STRATAFS=path/to/stratafs scripts/layout1-fixtures.sh
#
# STRATAFS is a binary with all features of commit b5302e2, the last one before the product was renamed and its own rows moved beneath
# `_treehold`. That binary writes every row. Only the expiry of the kept response and of the events is set later with SQL, since they would
# otherwise expire within days. The other engines contain copies made by the same binary.
#
# Needs sqlite3, curl, psql and pg_dump, mysql and mysqldump, redis-cli, python3, and the servers on their default local ports. It creates
# and drops a database `layout1_fixtures` on both SQL servers, and uses database 9 of Redis, which must be empty.
set -euo pipefail
: "${STRATAFS:?name the old binary by STRATAFS}"
stratafs=$(realpath "$STRATAFS")
target=$(realpath "$(dirname "$0")/../tests/fixtures/layout1")
[ "$(redis-cli -n 9 DBSIZE)" = 0 ] || { echo 'database 9 of the Redis server is not empty' >&2; exit 1; }
work=$(mktemp -d)
server=
finish() {
  if [ -n "$server" ]; then kill "$server" 2> /dev/null || true; fi
  psql -q -h 127.0.0.1 -U postgres -c 'DROP DATABASE IF EXISTS layout1_fixtures' postgres > /dev/null 2>&1 || true
  mysql -h 127.0.0.1 -u root -e 'DROP DATABASE IF EXISTS layout1_fixtures' > /dev/null 2>&1 || true
  for part in rows keys expiries changes; do redis-cli -n 9 DEL "{stratafs}:$part" > /dev/null 2>&1 || true; done
  rm -rf "$work"
}
trap finish EXIT
cd "$work"
mkdir workspace
echo 'the file beneath' > workspace/beneath.txt

cat > stratafs.toml << 'END'
[events]
keep = "30000d"

[routes."/memories"]
type = "store"
namespace = "{tenant}/{user}/memories"
index = ["trigram", "words"]

[routes."/workspace"]
type = "filesystem"
root = "workspace"
[routes."/workspace".overlay]
END
old() { "$stratafs" --config stratafs.toml --data data "$@"; }

# A thread with three checkpoints, two of them labelled, a fork of it, and its audit log.
old write /plan.md 'first draft'
old checkpoint create --label start
old write /plan.md 'second draft'
old mkdir /notes
old write /notes/a.md 'note a'
old checkpoint create --label review
old edit /plan.md 'second' 'third'
old thread fork side
old --thread side write /only-here.md 'of the fork'
echo '{"tool": "write_file", "args": {"path": "/called.md", "content": "written by a tool call"}}' | old run - > /dev/null
# A file with a long body.
python3 -c "print('\n'.join(f'line {n} of a long file' for n in range(2000)))" | old write /long.txt
# Memories of two users, with an index.
old write /memories/AGENTS.md 'remember the walrus'
old write /memories/deep/er/note.md 'the walrus sleeps'
old --user bob write /memories/own.md 'of bob'
# An overlay with a new, a changed and a removed file.
old write /workspace/new.txt 'kept apart'
old write /workspace/beneath.txt 'changed above'
# A token.
old token create --access admin --label fixture > token.txt

# Over HTTP: items, and a response that is kept for its idempotency key.
old serve --listen 127.0.0.1:0 --tokens 2> serve.log > serve.out &
server=$!
for _ in $(seq 100); do
  address=$(grep -ohE 'http://127\.0\.0\.1:[0-9]+' serve.log serve.out | head -1 || true)
  if [ -n "$address" ]; then break; fi
  sleep 0.1
done
ask() { curl -sSf -H "Authorization: Bearer $(cat token.txt)" "$@"; }
ask -X PUT -H 'Content-Type: application/json' -d '{"title": "walk", "done": false}' "$address/v1/store/item?namespace=tasks&key=one" > /dev/null
ask -X PUT -H 'Content-Type: application/json' -d '{"title": "sleep", "done": true}' "$address/v1/store/item?namespace=tasks&namespace=done&key=two" > /dev/null
ask -X POST -H 'Idempotency-Key: "fixture-key"' --data-binary 'written once' "$address/v1/fs/memories/once.md" > answer.json
kill "$server"
wait "$server" 2> /dev/null || true
server=

# Expiries are moved to the year 2100.
sqlite3 data/stratafs.db "UPDATE items SET expires_at = 4102444800000000 WHERE namespace LIKE 'answers/%'"
sqlite3 data/stratafs.db 'PRAGMA wal_checkpoint(TRUNCATE)' > /dev/null

old store export archive.tar --include tokens --include answers > /dev/null
old store copy default sled:sled --include tokens --include answers > /dev/null
psql -q -h 127.0.0.1 -U postgres -c 'DROP DATABASE IF EXISTS layout1_fixtures' -c 'CREATE DATABASE layout1_fixtures' postgres
old store copy default postgres://postgres@127.0.0.1/layout1_fixtures --include tokens --include answers > /dev/null
mysql -h 127.0.0.1 -u root -e 'DROP DATABASE IF EXISTS layout1_fixtures; CREATE DATABASE layout1_fixtures'
old store copy default mysql://root@127.0.0.1:3306/layout1_fixtures --include tokens --include answers > /dev/null
old store copy default redis://127.0.0.1:6379/9 --include tokens --include answers > /dev/null

sqlite3 data/stratafs.db VACUUM
sqlite3 data/stratafs.db 'PRAGMA wal_checkpoint(TRUNCATE)' > /dev/null
gzip -9nc data/stratafs.db > "$target/stratafs.db.gz"
gzip -9nc archive.tar > "$target/archive.tar.gz"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - -C sled . | gzip -9n > "$target/sled.tar.gz"
pg_dump -h 127.0.0.1 -U postgres --schema=stratafs --inserts --no-owner --no-privileges layout1_fixtures |
  grep -vE '^(--|SET |SELECT pg_catalog.set_config|\\|$)' | gzip -9n > "$target/postgres.sql.gz"
mysqldump -h 127.0.0.1 -u root --compact --hex-blob --skip-extended-insert --no-tablespaces layout1_fixtures |
  grep -vE '^/\*' | gzip -9n > "$target/mysql.sql.gz"
# One command per line, as a JSON list of arguments in base64.
python3 - << 'END' | gzip -9n > "$target/redis.jsonl.gz"
import base64, json, socket
connection = socket.create_connection(("127.0.0.1", 6379))
file = connection.makefile("rb")
def send(*arguments):
    arguments = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    connection.sendall(b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in arguments))
    return read()
def read():
    line = file.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"$":
        return None if rest == b"-1" else file.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [read() for _ in range(int(rest))]
    return rest
def show(*arguments):
    print(json.dumps([base64.b64encode(a).decode() for a in arguments]))
send("SELECT", 9)
for part in ("rows", "keys", "expiries", "changes"):
    key = b"{stratafs}:" + part.encode()
    if part == "rows":
        flat = send("HGETALL", key)
        pairs = sorted(zip(flat[::2], flat[1::2]))
        for field, value in pairs:
            show(b"HSET", key, field, value)
    else:
        flat = send("ZRANGE", key, 0, -1, "WITHSCORES")
        for member, score in zip(flat[::2], flat[1::2]):
            show(b"ZADD", key, score, member)
END
for part in rows keys expiries changes; do redis-cli -n 9 DEL "{stratafs}:$part" > /dev/null; done
# The facts that the tests check: the token, the kept response, and the event positions of the store.
python3 - > "$target/facts.json" << END
import json, subprocess
def old(*args):
    return subprocess.run(["$stratafs", "--config", "stratafs.toml", "--data", "data", *args], check=True, capture_output=True, text=True).stdout
facts = {
    "token": open("token.txt").read().strip(),
    "answer": json.load(open("answer.json")),
    "checkpoints": json.loads(old("--json", "checkpoint", "ls")),
    "timeline": json.loads(old("--json", "timeline", "/")),
}
print(json.dumps(facts, indent=1))
END
ls -l "$target"
