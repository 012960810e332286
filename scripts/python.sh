#!/usr/bin/env bash
# Builds the wheel of python/, installs it without a network into empty environments of two Pythons, and tests it:
#
#   scripts/servers.sh scripts/python.sh [PYTEST_ARGUMENT ...]
#   scripts/python.sh wheel DIRECTORY      only builds the wheel, into the directory
#
# PROFILE is the profile of cargo (dev). WHEELS is the directory of a wheel that is built already. PYTHON names the interpreter,
# OTHER_PYTHON the second one (Debian's). What the tests need is installed by pip into the target directory, once. Tests of PostgreSQL use
# TREEHOLD_TEST_POSTGRES_URL, or the server at its usual local address.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}" PYTHONDONTWRITEBYTECODE=1
export TREEHOLD_TEST_POSTGRES_URL="${TREEHOLD_TEST_POSTGRES_URL:-postgres://postgres@127.0.0.1:5432/postgres}"
python=${PYTHON:-python3}
other=${OTHER_PYTHON:-/usr/bin/python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tools=$CARGO_TARGET_DIR/python-tools
[ -x "$tools/bin/python" ] || "$python" -m venv "$tools"
pip() { "$tools/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip install --requirement python/tests/requirements.txt

build() { (cd python && "$tools/bin/maturin" build --quiet --profile "${PROFILE:-dev}" --out "$1"); }
if [ "${1:-}" = wheel ]; then
  mkdir -p "$2"
  build "$(realpath "$2")"
  exit
fi
if [ -z "${WHEELS:-}" ]; then
  echo "-- the wheel"
  WHEELS=$work/wheels
  build "$WHEELS"
fi
wheel=$(ls "$WHEELS"/*.whl)

echo "-- the source distribution"
(cd python && "$tools/bin/maturin" sdist --out "$work/sdist" 2> "$work/sdist.log") || { cat "$work/sdist.log"; exit 1; }
tar -xzf "$work"/sdist/*.tar.gz -C "$work/sdist"
cargo metadata --quiet --offline --locked --format-version 1 --manifest-path "$(ls "$work"/sdist/*/python/Cargo.toml)" > /dev/null

echo "-- in empty environments, without a network"
for interpreter in "$python" "$other"; do
  [ -x "$(command -v "$interpreter")" ] || { echo "no interpreter at $interpreter; name one by OTHER_PYTHON"; exit 1; }
  empty=$work/empty-$(basename "$(readlink -f "$interpreter")")-${interpreter//\//_}
  "$interpreter" -m venv --without-pip "$empty"
  pip --python "$empty/bin/python" install --no-index "$wheel"
  (cd "$work" && "$empty/bin/python" "$repository/python/tests/installed.py" && "$empty/bin/treehold" --version)
done

echo "-- the reference"
"$tools/bin/python" scripts/python_reference.py --check

echo "-- types"
pip install --no-deps --force-reinstall "$wheel"
(cd "$work" && "$tools/bin/mypy" --config-file "$repository/python/pyproject.toml" --cache-dir "$work/.checked-types" -p treehold)
"$tools/bin/pyright" --project python --pythonpath "$tools/bin/python"
(cd "$work" && "$tools/bin/python" -m mypy.stubtest treehold._native --ignore-disjoint-bases)

echo "-- tests"
(cd "$work" && "$tools/bin/pytest" -q -p no:cacheprovider --import-mode=importlib --config-file "$repository/python/pyproject.toml" \
  --rootdir "$repository/python" "$repository/python/tests" "$@")

echo "-- tests of the package alone, with the other interpreter"
second=$CARGO_TARGET_DIR/python-other
[ -x "$second/bin/python" ] || "$other" -m venv --without-pip "$second"
mapfile -t runner < <(grep '^pytest' python/tests/requirements.txt)
pip --python "$second/bin/python" install "${runner[@]}"
pip --python "$second/bin/python" install --no-deps --force-reinstall "$wheel"
(cd "$work" && "$second/bin/python" -m pytest -q -p no:cacheprovider --import-mode=importlib \
  --config-file "$repository/python/pyproject.toml" --rootdir "$repository/python" \
  "$repository/python/tests/native" "$repository/python/tests/traces")
