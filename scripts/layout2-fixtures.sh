#!/usr/bin/env bash
# Creates the stores in tests/fixtures/layout2/ for the tests of `treehold store migrate`:
#
#   TREEHOLD=path/to/treehold scripts/layout2-fixtures.sh
#
# TREEHOLD is a binary with all features of commit 8599796, the last one before rows about a user's rows moved to the user's partition.
# That binary writes every row. Only expiries are set later with SQL, since rows would otherwise expire within days. The other engines
# contain copies made by the same binary.
#
# Needs sqlite3, curl, psql and pg_dump, mysql and mysqldump, redis-cli, python3, and the servers on their default local ports. It creates
# and drops a database `layout2_fixtures` on both SQL servers, and uses database 9 of Redis, which must be empty.
set -euo pipefail
: "${TREEHOLD:?name the old binary by TREEHOLD}"
treehold=$(realpath "$TREEHOLD")
target=$(realpath "$(dirname "$0")/../tests/fixtures/layout2")
[ "$(redis-cli -n 9 DBSIZE)" = 0 ] || { echo 'database 9 of the Redis server is not empty' >&2; exit 1; }
work=$(mktemp -d)
server=
finish() {
  if [ -n "$server" ]; then kill "$server" 2> /dev/null || true; fi
  psql -q -h 127.0.0.1 -U postgres -c 'DROP DATABASE IF EXISTS layout2_fixtures' postgres > /dev/null 2>&1 || true
  mysql -h 127.0.0.1 -u root -e 'DROP DATABASE IF EXISTS layout2_fixtures' > /dev/null 2>&1 || true
  for part in rows keys expiries changes; do redis-cli -n 9 DEL "{treehold}:$part" > /dev/null 2>&1 || true; done
  rm -rf "$work"
}
trap finish EXIT
cd "$work"
mkdir workspace
echo 'the file beneath' > workspace/beneath.txt

cat > treehold.toml << 'END'
[events]
keep = "30000d"

[routes."/memories"]
type = "store"
namespace = "{tenant}/{user}/memories"
index = ["trigram", "words"]
history = { keep_last = 20, older_than = "30000d" }

# A namespace of one component.
[routes."/shared"]
type = "store"
namespace = "shared"
index = ["trigram"]
history = { keep_last = 20, older_than = "30000d" }

[routes."/workspace"]
type = "filesystem"
root = "workspace"
[routes."/workspace".overlay]
END
old() { "$treehold" --config treehold.toml --data data "$@"; }

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
# Memories of two users and files of everybody, with indexes and a past.
old write /memories/AGENTS.md 'remember the tiger'
old edit /memories/AGENTS.md tiger walrus
old write /memories/deep/er/note.md 'the walrus sleeps'
old write /memories/gone.md 'removed later'
old rm /memories/gone.md
old --user bob write /memories/own.md 'from bob'
old --user bob edit /memories/own.md from of
old write /shared/board.md 'everybody sees a heron'
old edit /shared/board.md heron walrus
# An overlay with a new, a changed and a removed file.
old write /workspace/new.txt 'kept apart'
old write /workspace/beneath.txt 'changed above'
# A token.
old token create --access admin --label fixture > token.txt
# States of an agent, and a trace.
old state put tea agent_state '{"summary": "", "context": [{"role": "USER", "content": "Tea?"}]}' > /dev/null
old state put tea notes '["milk", "sugar"]' --list > /dev/null
old trace create --id brewing 'make tea' > /dev/null

# Over HTTP: items, a session, and a response that is kept for its idempotency key.
old serve --listen 127.0.0.1:0 --tokens 2> serve.log > serve.out &
server=$!
for _ in $(seq 100); do
  address=$(grep -ohE 'http://127\.0\.0\.1:[0-9]+' serve.log serve.out | head -1 || true)
  if [ -n "$address" ]; then break; fi
  sleep 0.1
done
ask() { curl -sSf -H "Authorization: Bearer $(cat token.txt)" "$@"; }
json='Content-Type: application/json'
ask -X PUT -H "$json" -d '{"title": "walk", "done": false}' "$address/v1/store/item?namespace=tasks&key=one" > /dev/null
ask -X PUT -H "$json" -d '{"title": "sleep", "done": true}' "$address/v1/store/item?namespace=tasks&namespace=done&key=two" > /dev/null
ask -H "$json" -d '{"agent_id": "helper", "session_id": "tea"}' "$address/v1/sessions" > /dev/null
ask -H "$json" -d '{"messages": [{"role": "user", "content": "Where is the tea?", "timestamp": 1},
  {"role": "assistant", "content": [{"type": "text", "text": "Here."}]}], "usage": {"inputTokens": 1200, "outputTokens": 80}}' \
  "$address/v1/sessions/tea/messages" > /dev/null
ask -X POST --data-binary '- likes oolong' "$address/v1/sessions/tea/memo/NOTES.md" > /dev/null
ask -X POST -H 'Idempotency-Key: "fixture-key"' --data-binary 'written once' "$address/v1/fs/memories/once.md" > answer.json
kill "$server"
wait "$server" 2> /dev/null || true
server=

# Expiries are moved to the year 2100.
sqlite3 data/treehold.db 'UPDATE items SET expires_at = 4102444800000000 WHERE expires_at IS NOT NULL'
sqlite3 data/treehold.db 'PRAGMA wal_checkpoint(TRUNCATE)' > /dev/null

old store export archive.tar --include tokens --include answers > /dev/null
old store copy default sled:sled --include tokens --include answers > /dev/null
psql -q -h 127.0.0.1 -U postgres -c 'DROP DATABASE IF EXISTS layout2_fixtures' -c 'CREATE DATABASE layout2_fixtures' postgres
old store copy default postgres://postgres@127.0.0.1/layout2_fixtures --include tokens --include answers > /dev/null
mysql -h 127.0.0.1 -u root -e 'DROP DATABASE IF EXISTS layout2_fixtures; CREATE DATABASE layout2_fixtures'
old store copy default mysql://root@127.0.0.1:3306/layout2_fixtures --include tokens --include answers > /dev/null
old store copy default redis://127.0.0.1:6379/9 --include tokens --include answers > /dev/null

sqlite3 data/treehold.db VACUUM
sqlite3 data/treehold.db 'PRAGMA wal_checkpoint(TRUNCATE)' > /dev/null
gzip -9nc data/treehold.db > "$target/treehold.db.gz"
gzip -9nc archive.tar > "$target/archive.tar.gz"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - -C sled . | gzip -9n > "$target/sled.tar.gz"
pg_dump -h 127.0.0.1 -U postgres --schema=treehold --inserts --no-owner --no-privileges layout2_fixtures |
  grep -vE '^(--|SET |SELECT pg_catalog.set_config|\\|$)' | gzip -9n > "$target/postgres.sql.gz"
mysqldump -h 127.0.0.1 -u root --compact --hex-blob --skip-extended-insert --no-tablespaces layout2_fixtures |
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
    key = b"{treehold}:" + part.encode()
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
for part in rows keys expiries changes; do redis-cli -n 9 DEL "{treehold}:$part" > /dev/null; done
# The facts that the tests check: the token, the kept response, and what the old binary prints.
python3 - > "$target/facts.json" << END
import json, subprocess
def old(*args):
    return subprocess.run(["$treehold", "--config", "treehold.toml", "--data", "data", *args], check=True, capture_output=True, text=True).stdout
facts = {
    "token": open("token.txt").read().strip(),
    "answer": json.load(open("answer.json")),
    "checkpoints": json.loads(old("--json", "checkpoint", "ls")),
    "timeline": json.loads(old("--json", "timeline", "/")),
    "log": json.loads(old("--json", "log", "/memories/AGENTS.md")),
    "shared_log": json.loads(old("--json", "log", "/shared/board.md")),
    "messages": old("--json", "session", "messages", "tea"),
    "trace": old("--json", "trace", "show", "brewing"),
}
print(json.dumps(facts, indent=1))
END
ls -l "$target"
