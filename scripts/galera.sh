#!/usr/bin/env bash
# Starts a MariaDB Galera cluster of three nodes for tests, in a temporary directory and on free ports of this machine.
#
#   scripts/galera.sh COMMAND…   runs the command with TREEHOLD_TEST_GALERA_URLS set, and returns its exit code
#   scripts/galera.sh            prints the URLs and keeps the cluster until interrupted
#
# TREEHOLD_TEST_GALERA_URLS lists the URL of each node, separated by commas. TREEHOLD_TEST_GALERA_NODES names the directory of the
# cluster. A test kills a node with `kill NUMBER` in it, which returns when the process is gone, and starts it again with
# `start NUMBER`, which returns when the node has joined. Nodes are numbered from 1.
#
# Everything it started is stopped when it ends, however it ends.
set -euo pipefail

provider=$(ls /usr/lib/galera/libgalera_smm.so /usr/lib*/galera-4/libgalera_smm.so 2> /dev/null | head -1 || true)
server=$(command -v mariadbd || true)
if [ -z "$provider" ] || [ -z "$server" ] || ! command -v rsync > /dev/null; then
  echo "galera: install MariaDB, its library galera-4, and rsync" >&2
  exit 1
fi

directory=$(mktemp -d)
chmod 755 "$directory"
user=$(id -un)
# The server refuses to run as root.
if [ "$user" = root ]; then user=mysql; fi

# Kills the nodes, and what they started to send or receive a copy of a node. A process without the directory among its arguments has
# taken the number of one that is gone.
stop_nodes() {
  local file process
  for file in "$directory"/*/pid "$directory"/*/data/rsync_sst.pid; do
    process=$(cat "$file" 2> /dev/null || true)
    if [ -n "$process" ] && grep -qsF "$directory/" "/proc/$process/cmdline"; then
      kill -9 "$process" 2> /dev/null || true
      while grep -qsF "$directory/" "/proc/$process/cmdline"; do sleep 0.05; done
    fi
  done
}
stop() {
  stop_nodes
  rm -rf "$directory"
}
trap stop EXIT
trap 'exit 130' INT TERM

is_free() { ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

# Writes the programs that start and kill a node.
cat > "$directory/start" << START
#!/usr/bin/env bash
# Starts node \$1 and waits until it has joined. After a crash, it first reads the position from the node's tables. With a second
# argument, the node begins a cluster.
set -euo pipefail
node=$directory/\$1
as_user() { if [ "\$(id -u)" = 0 ]; then runuser -u $user -- "\$@"; else "\$@"; fi; }
options=()
if [ -n "\${2:-}" ]; then
  options=(--wsrep-new-cluster)
elif [ -e "\$node/server.pid" ]; then
  as_user $server --defaults-file="\$node/server.cnf" --wsrep-recover > "\$node/recovery" 2>&1 || true
  position=\$(sed -n 's/.*Recovered position: *//p' "\$node/recovery" | tail -1)
  if [ -n "\$position" ]; then options=("--wsrep-start-position=\$position"); fi
fi
# The shell becomes the server, so its number is the server's.
# shellcheck disable=SC2016
as_user setsid sh -c 'echo \$\$ > "\$0/pid"; exec "\$@" >> "\$0/log" 2>&1' "\$node" \\
  $server --defaults-file="\$node/server.cnf" "\${options[@]}" < /dev/null > /dev/null 2>&1 &
port=\$(sed -n 's/^port=//p' "\$node/server.cnf")
for _ in \$(seq 1200); do
  state=\$(mariadb --no-defaults -h 127.0.0.1 -P "\$port" -u root -Nse "SHOW STATUS LIKE 'wsrep_local_state_comment'" 2> /dev/null || true)
  if [ "\${state#*[[:space:]]}" = Synced ]; then exit 0; fi
  if ! kill -0 \$! 2> /dev/null; then break; fi
  sleep 0.1
done
grep -E "ERROR|Warning" "\$node/log" | tail -n 20 >&2
exit 1
START
cat > "$directory/kill" << KILL
#!/usr/bin/env bash
# Kills node \$1 and waits until its process is gone.
set -euo pipefail
process=\$(cat $directory/\$1/pid)
is_ours() { grep -qsF "$directory/" "/proc/\$process/cmdline"; }
if is_ours; then kill -9 "\$process"; fi
while is_ours; do sleep 0.01; done
KILL
chmod 755 "$directory/start" "$directory/kill"

# Makes an empty data directory once; each node gets a copy.
mkdir "$directory/empty"
if [ "$(id -u)" = 0 ]; then chown "$user" "$directory/empty"; fi
mariadb-install-db --no-defaults --datadir="$directory/empty/data" --user="$user" --auth-root-authentication-method=normal \
  --skip-test-db > "$directory/install.log" 2>&1 || { cat "$directory/install.log" >&2; exit 1; }

# Starts three nodes that form a cluster. Fails if another process takes a port first.
start() {
  # Each node uses four ports: for clients, for the group, and for receiving missing transactions and whole copies. All are below
  # the ephemeral ports.
  ports=()
  while [ "${#ports[@]}" -lt 3 ]; do
    port=$((20000 + RANDOM % 3000 * 4))
    if [[ " ${ports[*]:-} " != *" $port "* ]] && is_free "$port" && is_free "$((port + 1))" && is_free "$((port + 2))" \
      && is_free "$((port + 3))"; then
      ports+=("$port")
    fi
  done
  local number=0 group
  group=$(printf ',127.0.0.1:%s' "$((ports[0] + 1))" "$((ports[1] + 1))" "$((ports[2] + 1))")
  for port in "${ports[@]}"; do
    number=$((number + 1))
    rm -rf "${directory:?}/$number"
    mkdir "$directory/$number"
    if [ "$number" = 1 ]; then cp -a "$directory/empty/data" "$directory/1/data"; fi
    cat > "$directory/$number/server.cnf" << CONFIGURATION
[mysqld]
user=$user
datadir=$directory/$number/data
socket=$directory/$number/socket
pid-file=$directory/$number/server.pid
port=$port
bind-address=127.0.0.1
skip-name-resolve
binlog_format=ROW
default_storage_engine=InnoDB
innodb_autoinc_lock_mode=2
innodb_buffer_pool_size=64M
innodb_log_file_size=32M
innodb_flush_log_at_trx_commit=1
performance_schema=OFF
wsrep_on=ON
wsrep_provider=$provider
wsrep_cluster_name=${directory##*/}
wsrep_cluster_address=gcomm://${group#,}
wsrep_node_name=node$number
wsrep_node_address=127.0.0.1:$((port + 1))
wsrep_node_incoming_address=127.0.0.1:$port
wsrep_sst_method=rsync
wsrep_sst_receive_address=127.0.0.1:$((port + 3))
wsrep_slave_threads=4
wsrep_provider_options="base_host=127.0.0.1;base_port=$((port + 1));gmcast.listen_addr=tcp://127.0.0.1:$((port + 1));ist.recv_addr=127.0.0.1:$((port + 2));gcache.size=64M;evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT8S"
CONFIGURATION
    if [ "$(id -u)" = 0 ]; then chown -R "$user" "$directory/$number"; fi
  done
  # The others begin where the first was stopped. With an empty directory, each would wait for a copy of a node.
  "$directory/start" 1 first || return 1
  mariadb --no-defaults -h 127.0.0.1 -P "${ports[0]}" -u root -e 'CREATE DATABASE test'
  mariadb-admin --no-defaults -h 127.0.0.1 -P "${ports[0]}" -u root shutdown
  while [ -e "$directory/1/server.pid" ]; do sleep 0.05; done
  for number in 2 3; do
    rm -rf "$directory/$number/data"
    cp -a "$directory/1/data" "$directory/$number/data"
    rm -f "$directory/$number/data"/{galera.cache,gvwstate.dat}
  done
  "$directory/start" 1 first && "$directory/start" 2 && "$directory/start" 3
}

attempts_left=3
until start; do
  attempts_left=$((attempts_left - 1))
  stop_nodes
  if [ "$attempts_left" = 0 ]; then exit 1; fi
done

TREEHOLD_TEST_GALERA_URLS=$(printf ',mysql://root@127.0.0.1:%s/test' "${ports[@]}")
export TREEHOLD_TEST_GALERA_URLS=${TREEHOLD_TEST_GALERA_URLS#,} TREEHOLD_TEST_GALERA_NODES=$directory
if [ "$#" -gt 0 ]; then
  "$@"
else
  echo "$TREEHOLD_TEST_GALERA_URLS"
  while :; do sleep 3600; done
fi
