#!/usr/bin/env bash
# Creates the dumps in tests/fixtures/layout3/ for the tests of `treehold store migrate`:
#
#   TREEHOLD=path/to/treehold scripts/layout3-fixtures.sh
#
# TREEHOLD is a binary with all features of commit 57720f8, the last one in which PostgreSQL and MySQL had one counter for all partitions.
# It migrates the dumps in tests/fixtures/layout2/.
#
# Needs psql and pg_dump, mariadb and mariadb-dump, and both servers on their default local ports, where it creates and drops a database
# `layout3_fixtures`.
set -euo pipefail
: "${TREEHOLD:?name the old binary by TREEHOLD}"
treehold=$(realpath "$TREEHOLD")
fixtures=$(realpath "$(dirname "$0")/../tests/fixtures")
work=$(mktemp -d)
postgres=(-q -h 127.0.0.1 -U postgres)
mysql=(-h 127.0.0.1 -u root --ssl=0)
finish() {
  psql "${postgres[@]}" -c 'DROP DATABASE IF EXISTS layout3_fixtures' postgres > /dev/null 2>&1 || true
  mariadb "${mysql[@]}" -e 'DROP DATABASE IF EXISTS layout3_fixtures' > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
cd "$work"

psql "${postgres[@]}" -c 'CREATE DATABASE layout3_fixtures' postgres
gzip -dc "$fixtures/layout2/postgres.sql.gz" | psql "${postgres[@]}" layout3_fixtures
"$treehold" store migrate postgres://postgres@127.0.0.1/layout3_fixtures
pg_dump -h 127.0.0.1 -U postgres --no-owner --no-privileges --inserts layout3_fixtures \
  | grep -vE '^(--|SET |\\|SELECT pg_catalog.set_config|$)' > postgres.sql

mariadb "${mysql[@]}" -e 'CREATE DATABASE layout3_fixtures'
gzip -dc "$fixtures/layout2/mysql.sql.gz" | mariadb "${mysql[@]}" layout3_fixtures
"$treehold" store migrate mysql://root@127.0.0.1/layout3_fixtures
mariadb-dump "${mysql[@]}" --skip-extended-insert --hex-blob --compact layout3_fixtures | grep -vE '^(/\*|$)' > mysql.sql

mkdir -p "$fixtures/layout3"
for engine in postgres mysql; do gzip -9 -n < "$engine.sql" > "$fixtures/layout3/$engine.sql.gz"; done
