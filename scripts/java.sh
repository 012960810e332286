#!/usr/bin/env bash
# Compiles packages/java with all warnings as errors, makes its jar and its documentation, and tests it against a real server.
# Needs a JDK of version 17 or later. TREEHOLD names the binary; arguments are parts of the names of the tests to run. AGENTSCOPE is a class
# path with AgentScope, for its adapters.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"
if ! command -v javac > /dev/null; then
  as_root=$([ "$(id -u)" = 0 ] || echo sudo)
  $as_root apt-get update --quiet --quiet
  $as_root apt-get install --quiet --quiet --yes --no-install-recommends openjdk-17-jdk-headless > /dev/null
fi
[ -n "${TREEHOLD:-}" ] || cargo build --quiet --all-features --bin treehold
TREEHOLD=$(realpath "${TREEHOLD:-$target/debug/treehold}")
export TREEHOLD
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
cd packages/java
grep -q "<version>$version</version>" pom.xml || { echo "packages/java/pom.xml is not of version $version"; exit 1; }
rm -rf build
mkdir -p build/classes build/test
compile() { javac -Xlint:all -Werror --release 17 -encoding UTF-8 "$@"; }
sources() { find "$1" -name '*.java' | sort; }
jar=build/treehold-client-$version.jar

mapfile -t main < <(sources src/main/java)
compile -d build/classes "${main[@]}"
cat > build/manifest << MANIFEST
Implementation-Title: treehold-client
Implementation-Version: $version
MANIFEST
# One time for all entries, so that the same sources make the same jar.
jar --create --file "$jar" --manifest build/manifest --date 2020-01-01T00:00:00Z -C build/classes .
javadoc -quiet -Xdoclint:all -Werror --release 17 -encoding UTF-8 -d build/doc "${main[@]}"

mapfile -t tests < <(sources src/test/java)
compile -classpath "$jar" -d build/test "${tests[@]}"
compile -classpath "$jar" -d build/examples examples/*.java
if [ -n "${AGENTSCOPE:-}" ]; then compile -classpath "$jar:$AGENTSCOPE" -d build/examples examples/agentscope/*.java; fi
java -ea -Dexamples=build/examples -classpath "$jar:build/test" dev.treehold.client.Tests "$@"
