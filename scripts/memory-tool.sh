#!/usr/bin/env bash
# Runs the Python SDK's own tests of its memory tool against treehold's tool `memory`, and fails if a result differs.
#
#   scripts/memory-tool.sh [PYTEST ARGUMENTS...]
#
# Installs the SDK and its tests under the target directory with pip, once. PYTHON (python3) names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.11.0
target="${CARGO_TARGET_DIR:-$PWD/target}"
home="$target/memory-tool"
[ -x "$home/python/bin/pytest" ] || {
  mkdir -p "$home"
  "${PYTHON:-python3}" -m venv "$home/python"
  "$home/python/bin/pip" install --quiet "anthropic==$version" pytest pytest-asyncio
}
[ -d "$home/anthropic-$version" ] || {
  "$home/python/bin/pip" download --quiet --no-binary :all: --no-deps --dest "$home" "anthropic==$version"
  tar -xzf "$home/anthropic-$version.tar.gz" -C "$home"
}
[ -n "${TREEHOLD:-}" ] || cargo build --quiet --bin treehold
# Excludes tests that depend on internals of the SDK's class: they replace its functions or `os.open`, or inspect the directories that its
# constructor creates. Rust tests cover the same behaviour (tests/it/tiers/memory_tool.rs, tests/it/filesystem).
inner='created_after_validation or replaced_with_symlink_before_open or under_permissive_umask or validate_path_returns'
TREEHOLD="${TREEHOLD:-$target/debug/treehold}" PYTHONPATH="$PWD/scripts" "$home/python/bin/pytest" -p memory_tool_suite --noconftest --quiet \
  -p no:cacheprovider -o asyncio_mode=auto -o addopts= -o filterwarnings= -k "not ($inner)" "$@" \
  "$home/anthropic-$version/tests/lib/tools/memory_tools"
