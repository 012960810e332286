#!/usr/bin/env bash
# Drives a real Claude Code against the server, without a network: a script acts as the model. It writes, reads, edits, searches and lists
# over stdio and HTTP, and the model must receive the exact text of the files.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}
tools=${TREEHOLD_CLAUDE_CODE:-$target/claude-code}
treehold=${TREEHOLD:-$target/debug/treehold}
version=2.1.329
mkdir -p "$tools"
if [ ! -x "$tools/node_modules/.bin/claude" ]; then
  echo '{"private": true}' > "$tools/package.json"
  (cd "$tools" && timeout 600 npm install --silent --no-fund --no-audit "@anthropic-ai/claude-code@$version")
fi
work=$(mktemp -d)
started=()
trap 'for process in "${started[@]}"; do kill "$process" 2> /dev/null || true; done; rm -rf "$work"' EXIT
mkdir "$work/here" "$work/home"
cat > "$work/script.json" << 'SCRIPT'
[
  {"name": "mcp__files__write_file", "input": {"path": "/memories/a.md", "content": "one \"quoted\"\n\ttwo\n"}},
  {"name": "mcp__files__read_file", "input": {"path": "/memories/a.md"}},
  {"name": "mcp__files__edit_file", "input": {"path": "/memories/a.md", "old_string": "two", "new_string": "three"}},
  {"name": "mcp__files__grep", "input": {"pattern": "three", "path": "/memories"}},
  {"name": "mcp__files__read_file", "input": {"path": "/memories/none.md"}},
  {"name": "ReadMcpResourceTool", "input": {"server": "files", "uri": "vfs:///memories/a.md"}},
  {"name": "ReadMcpResourceTool", "input": {"server": "files", "uri": "vfs:///memories"}},
  {"name": "ReadMcpResourceDirTool", "input": {"server": "files", "uri": "vfs:///memories"}}
]
SCRIPT
cat > "$work/check.py" << 'CHECK'
import json, sys
told = json.load(open(sys.argv[1]))
for step in told:
    print(json.dumps(step)[:300])
texts = [step["text"] for step in told]
assert len(told) == 8, f"{len(told)} of 8 calls were answered"
assert texts[1] == 'one "quoted"\n\ttwo\n', texts[1]
assert texts[3].rstrip("\n") == "/memories/a.md:2:\tthree", texts[3]
assert told[4]["is_error"] and "error [not_found]" in texts[4], told[4]
assert "three" in texts[5] and not told[5]["is_error"], told[5]
assert "a.md" in texts[6] and not told[6]["is_error"], told[6]
# Builds of the client without directory listing say so.
assert "vfs:///memories/a.md" in texts[7] or texts[7] == "Directory listing is not enabled in this build.", told[7]
CHECK
(cd "$work/here" && TREEHOLD_DATA="$work/data-http" exec "$treehold" serve --listen 127.0.0.1:0) > "$work/address" &
started+=($!)
for _ in $(seq 600); do [ -s "$work/address" ] && break; sleep 0.1; done
url=$(head -n 1 "$work/address")
for transport in stdio http; do
  echo "--- Claude Code over $transport"
  python3 "$top/scripts/mcp/scripted_model.py" "$work/script.json" "$work/told.json" > "$work/port.$transport" &
  started+=($!)
  for _ in $(seq 600); do [ -s "$work/port.$transport" ] && break; sleep 0.1; done
  home="$work/home/$transport"
  mkdir "$home"
  rm -f "$work/told.json"
  (
    cd "$work/here"
    export HOME="$home" TREEHOLD_DATA="$work/data-stdio" ANTHROPIC_API_KEY=none CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 ENABLE_TOOL_SEARCH=false
    export ANTHROPIC_BASE_URL="http://127.0.0.1:$(cat "$work/port.$transport")"
    if [ "$transport" = http ]; then
      "$tools/node_modules/.bin/claude" mcp add --transport http files "$url" > /dev/null
    else
      "$tools/node_modules/.bin/claude" mcp add files -- "$treehold" mcp > /dev/null
    fi
    allowed="mcp__files,ReadMcpResourceTool,ReadMcpResourceDirTool"
    timeout 120 "$tools/node_modules/.bin/claude" -p "go" --allowedTools "$allowed" --output-format json < /dev/null > "$work/claude.$transport" 2>&1
  ) || { cat "$work/claude.$transport" 2> /dev/null; exit 1; }
  python3 "$work/check.py" "$work/told.json" || { tail -c 2000 "$work/claude.$transport"; exit 1; }
done
echo "Claude Code: ok"
