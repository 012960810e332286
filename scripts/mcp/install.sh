#!/usr/bin/env bash
# Installs MCP clients and test tools into a directory, each once: install.sh DIRECTORY
set -euo pipefail
cd "$1"
[ -e package.json ] || echo '{"private": true}' > package.json
wanted="node@22 @modelcontextprotocol/client@2.4.0 @modelcontextprotocol/conformance@0.2.0-alpha.12 @modelcontextprotocol/inspector@2.12.0 @modelcontextprotocol/server-filesystem@2026.8.31"
if [ "$(cat installed 2> /dev/null)" != "$wanted" ]; then
  # shellcheck disable=SC2086
  timeout 600 npm install --silent --no-fund --no-audit $wanted
  echo "$wanted" > installed
fi
venv() {
  [ -x "$1/bin/python" ] || python3 -m venv "$1"
  "$1/bin/python" -c "import importlib.metadata as m; assert m.version('${2%==*}') == '${2#*==}'" 2> /dev/null || timeout 600 "$1/bin/pip" install --quiet "$2"
}
venv python mcp==2.3.0
venv langchain langchain-mcp-adapters==0.3.2
venv openai-agents openai-agents==0.24.0
