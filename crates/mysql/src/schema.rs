//! The tables: creation, migration and checks of the server's settings.
//!
//! MySQL commits each schema change on its own, so every step must be repeatable after an interruption: steps create
//! only what is missing, and the schema version is written last. Of several processes, one migrates while it holds a
//! server lock. Clusters without such locks may run it twice, which does no harm.

use super::error::{Fault, damaged, failed, is_deadlock, is_no_such_table};
use super::pool::{Connection, column};
use super::sql::{NEW, Tables, quoted};
use mysql_async::Row;
use std::collections::HashMap;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Durability;
use treehold_store::migrate::{FORMER_NAME, OldLayout};

/// The statements that create the tables. [`migrate`](super::migrate) converts tables of former layouts.
///
/// Items and bodies are two tables, so that keys-only scans, counts and conditions never touch the pages of bodies.
/// Both are clustered by key, so that a scan reads only what it returns. The partition leads every key: a namespace's text starts with that
/// of its partition.
fn creation(tables: &Tables) -> Vec<String> {
    let Tables { partitions, items, bodies, namespaces, .. } = tables;
    let engine = "ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4";
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {items} (
                namespace VARBINARY(1024) NOT NULL,
                head VARBINARY(1536) NOT NULL,
                digest VARBINARY(16) NOT NULL,
                tail VARBINARY(2560) NOT NULL,
                version BIGINT UNSIGNED NOT NULL,
                created_at BIGINT NOT NULL,
                modified_at BIGINT NOT NULL,
                expires_at BIGINT NULL,
                size INT UNSIGNED NOT NULL,
                meta MEDIUMBLOB NOT NULL,
                PRIMARY KEY (namespace, head, digest),
                KEY by_expiry (expires_at)
            ) {engine}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {bodies} (
                namespace VARBINARY(1024) NOT NULL,
                head VARBINARY(1536) NOT NULL,
                digest VARBINARY(16) NOT NULL,
                body LONGBLOB NOT NULL,
                PRIMARY KEY (namespace, head, digest)
            ) {engine}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {namespaces} (
                namespace VARBINARY(1024) NOT NULL PRIMARY KEY
            ) {engine}"
        ),
        creation_of_partitions(tables),
        format!("INSERT IGNORE INTO {partitions} VALUES ({}, 0)", quoted(NEW.as_bytes())),
    ]
}

/// Returns the statement that creates the table of partitions.
pub(super) fn creation_of_partitions(tables: &Tables) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (
            partition_name VARBINARY(1024) NOT NULL PRIMARY KEY,
            version BIGINT UNSIGNED NOT NULL
        ) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4",
        tables.partitions
    )
}

/// The schema version that this program writes.
pub(super) const SCHEMA: u32 = 7;

/// The schema version of the first layout.
pub(super) const FIRST: u64 = 1;

/// The schema version during the migration from the first layout to the second.
pub(super) const FIRST_MOVING: u64 = 2;

/// The schema version of the second layout.
pub(super) const SECOND: u64 = 3;

/// The schema version during the migration from the second layout to the third.
pub(super) const SECOND_MOVING: u64 = 4;

/// The schema version in which namespaces have their present names, but one counter was for all.
pub(super) const ONE_COUNTER: u64 = 5;

/// The schema version during the migration to a counter for each partition.
pub(super) const ONE_COUNTER_MOVING: u64 = 6;

/// How long other processes wait for the one that migrates, in seconds.
const LOCK_SECONDS: u32 = 60;

/// The least packet size: a packet must fit the largest statement without a body.
const PACKET_BYTES_MIN: u64 = 1 << 20;

/// The room in a packet beside a body: the row's metadata, its key and the protocol overhead.
const PACKET_OVERHEAD_BYTES: u64 = 128 << 10;

/// The largest body, however large packets may be.
const VALUE_BYTES_MAX: u64 = 512 << 20;

/// The largest body with packets of 16 MiB, the smallest default of supported servers.
pub(crate) const USUAL_VALUE_BYTES_MAX: u64 = (16 << 20) - PACKET_OVERHEAD_BYTES;

/// The server's relevant settings.
#[derive(Debug, Clone)]
pub(super) struct ServerFacts {
    /// The engine's name and version.
    pub(super) engine: String,
    pub(super) durability: Durability,
    pub(super) notices: Vec<String>,
    pub(super) packet_bytes: u64,
    pub(super) value_bytes_max: u64,
    pub(super) wait_timeout: Duration,
}

/// Reads the server's settings. One round trip.
pub(super) async fn server_facts(connection: &mut Connection) -> Result<ServerFacts, Fault> {
    let sql = "SELECT VERSION(); SHOW VARIABLES WHERE Variable_name IN ('max_allowed_packet', 'wait_timeout', \
               'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'innodb_flush_method', 'log_bin', 'sync_binlog', 'wsrep_on', \
               'wsrep_max_ws_size', 'wsrep_provider_options')";
    let mut sets = connection.run(sql.to_owned()).await?.into_iter();
    let mut version = sets.next().and_then(|mut rows| rows.pop()).ok_or_else(|| damaged("the server has no version"))?;
    let version: String = column(&mut version, 0)?;
    let mut variables = HashMap::new();
    for mut row in sets.next().unwrap_or_default() {
        variables.insert(column::<String>(&mut row, 0)?, column::<String>(&mut row, 1)?);
    }
    Ok(facts_of(&version, &variables)?)
}

fn facts_of(version: &str, variables: &HashMap<String, String>) -> Result<ServerFacts> {
    let number = |name: &str| variables.get(name).and_then(|value| value.parse::<u64>().ok());
    let is_mariadb = version.contains("MariaDB");
    let release = version.split(['-', '+']).next().unwrap_or_default();
    let mut parts = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let release_number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let (name, oldest) = if is_mariadb { ("MariaDB", (10, 6)) } else { ("MySQL", (8, 0)) };
    let engine = format!("{name} {release}");
    if release_number < oldest {
        let message = format!("the server of the store is {engine}; MySQL 8.0, MariaDB 10.6 or newer is required");
        return Err(Error::unsupported(message));
    }
    let packet_bytes = number("max_allowed_packet").unwrap_or(PACKET_BYTES_MIN);
    if packet_bytes < PACKET_BYTES_MIN {
        let message =
            format!("the server of the store accepts packets of {packet_bytes} bytes only; set `max_allowed_packet` to 1M or more");
        return Err(Error::unsupported(message));
    }
    let mut notices = Vec::new();
    let flush = number("innodb_flush_log_at_trx_commit");
    if flush != Some(1) {
        notices.push(format!(
            "innodb_flush_log_at_trx_commit is {}: commits of the last second are lost on a power failure{}; set it to 1",
            flush.map_or_else(|| "unknown".to_owned(), |flush| flush.to_string()),
            if flush == Some(2) { "" } else { " and when the server is killed" },
        ));
    }
    let is_on = |name: &str| variables.get(name).is_some_and(|value| value.eq_ignore_ascii_case("on") || value == "1");
    if is_on("log_bin") && number("sync_binlog") != Some(1) {
        notices.push(
            "sync_binlog is not 1: after a power failure the server rolls back commits missing from its binary log; set it to 1".to_owned(),
        );
    }
    if !is_on("innodb_doublewrite") && variables.contains_key("innodb_doublewrite") {
        notices.push(
            "innodb_doublewrite is off: a page half written on a power failure is damaged, unless the disk writes pages atomically"
                .to_owned(),
        );
    }
    if variables.get("innodb_flush_method").is_some_and(|method| method.to_ascii_lowercase().contains("nosync")) {
        notices.push("innodb_flush_method does not wait for the disk: commits are lost on a power failure".to_owned());
    }
    let is_of_cluster = is_on("wsrep_on");
    if is_of_cluster {
        notices.push(
            "the server is a node of a Galera cluster: it may lose acknowledged commits when nodes are killed or cut off at the same time; \
             innodb_flush_log_at_trx_commit has to be 1 on every node"
                .to_owned(),
        );
        let options = variables.get("wsrep_provider_options").map_or("", String::as_str);
        let is_chosen = |name: &str| options.split(';').any(|option| is_option(option, name));
        if is_chosen("pc.ignore_sb") || is_chosen("pc.ignore_quorum") {
            notices.push(
                "pc.ignore_sb or pc.ignore_quorum is set: the parts of a divided cluster all accept commits, and those of one are lost; unset it"
                    .to_owned(),
            );
        }
    }
    let engine = if is_of_cluster { format!("{engine} in a Galera cluster") } else { engine };
    let write_set_bytes = number("wsrep_max_ws_size").filter(|_| is_of_cluster).unwrap_or(u64::MAX);
    let durability = if notices.is_empty() { Durability::Power } else { Durability::Process };
    Ok(ServerFacts {
        engine,
        durability,
        notices,
        packet_bytes,
        value_bytes_max: (packet_bytes.min(write_set_bytes).saturating_sub(PACKET_OVERHEAD_BYTES)).min(VALUE_BYTES_MAX),
        wait_timeout: Duration::from_secs(number("wait_timeout").unwrap_or(28_800)),
    })
}

/// Returns whether an option of the form `name = value` has this name and is on.
fn is_option(option: &str, name: &str) -> bool {
    option.split_once('=').is_some_and(|(found, value)| {
        found.trim() == name && ["yes", "true", "on", "1"].iter().any(|on| value.trim().eq_ignore_ascii_case(on))
    })
}

/// Creates missing tables, and refuses those of another version.
pub(super) async fn migrate(connection: &mut Connection, tables: &Tables, is_default: bool) -> Result<()> {
    if is_made(schema_version(connection, tables).await?)? {
        return Ok(());
    }
    if is_default && is_under_former_name(connection).await? {
        return Err(OldLayout::error(Some(format!("tables with the prefix `{}` hold it", former_prefix()).into())));
    }
    lock_tables(connection, tables).await?;
    migrate_locked(connection, tables).await?;
    unlock_tables(connection, tables).await
}

/// Returns an expression for the name of the server lock.
fn lock_name(tables: &Tables) -> String {
    format!("CONCAT('treehold ', LEFT(SHA1(CONCAT(DATABASE(), ' ', '{}')), 40))", tables.prefix)
}

/// Takes the server lock for creating and migrating tables.
pub(super) async fn lock_tables(connection: &mut Connection, tables: &Tables) -> Result<()> {
    let lock = lock_name(tables);
    let taken = connection.run(format!("SELECT GET_LOCK({lock}, {LOCK_SECONDS})")).await.map_err(failed)?;
    let is_taken = taken.into_iter().flatten().next().and_then(|mut row| column::<Option<u64>>(&mut row, 0).ok()).flatten() == Some(1);
    if !is_taken {
        let message = "another process is still creating the store's tables; try again";
        return Err(Error::new(ErrorKind::Unavailable, message).without_effect());
    }
    Ok(())
}

/// Releases the server lock.
pub(super) async fn unlock_tables(connection: &mut Connection, tables: &Tables) -> Result<()> {
    connection.run(format!("SELECT RELEASE_LOCK({})", lock_name(tables))).await.map_err(failed)?;
    Ok(())
}

async fn migrate_locked(connection: &mut Connection, tables: &Tables) -> Result<()> {
    if is_made(schema_version(connection, tables).await?)? {
        return Ok(());
    }
    let Tables { schema, .. } = tables;
    let sql = format!(
        "CREATE TABLE IF NOT EXISTS {schema} (id TINYINT NOT NULL PRIMARY KEY, version INT UNSIGNED NOT NULL) \
         ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4"
    );
    run_repeatable(connection, &sql).await.map_err(failed)?;
    for sql in creation(tables) {
        run_repeatable(connection, &sql).await.map_err(failed)?;
    }
    let sql = format!("INSERT INTO {schema} VALUES (1, {SCHEMA}) ON DUPLICATE KEY UPDATE version = GREATEST(version, VALUES(version))");
    run_repeatable(connection, &sql).await.map_err(failed)?;
    check_tables(connection, tables).await
}

/// Runs a statement that may run twice. Server locks are those of one node, so in a Galera cluster it may lose to a process that does the
/// same on another node.
pub(super) async fn run_repeatable(connection: &mut Connection, sql: &str) -> Result<Vec<Vec<Row>>, mysql_async::Error> {
    let mut attempts_left = 100;
    loop {
        attempts_left -= 1;
        match connection.run(sql.to_owned()).await {
            Err(error) if is_deadlock(&error) && attempts_left > 0 => tokio::time::sleep(Duration::from_millis(5)).await,
            outcome => return outcome,
        }
    }
}

/// Fails for tables whose engine is not InnoDB. A server may substitute another engine silently.
async fn check_tables(connection: &mut Connection, tables: &Tables) -> Result<()> {
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND ENGINE = 'InnoDB' AND ROW_FORMAT = 'Dynamic' \
         AND TABLE_NAME IN ('{0}schema', '{0}partitions', '{0}rows', '{0}bodies', '{0}namespaces')",
        tables.prefix
    );
    let rows = connection.run(sql).await.map_err(failed)?;
    let count = rows.into_iter().flatten().next().and_then(|mut row| column::<u64>(&mut row, 0).ok());
    if count == Some(5) {
        return Ok(());
    }
    let message = "the store's tables do not use InnoDB with dynamic rows; drop them and enable both on the server";
    Err(Error::unsupported(message))
}

/// Returns the schema version; 0 if there are no tables.
pub(super) async fn schema_version(connection: &mut Connection, tables: &Tables) -> Result<u64> {
    match connection.run(format!("SELECT version FROM {} WHERE id = 1", tables.schema)).await {
        Ok(sets) => match sets.into_iter().flatten().next() {
            Some(mut row) => Ok(column(&mut row, 0)?),
            None => Ok(0),
        },
        Err(error) if is_no_such_table(&error) => Ok(0),
        Err(error) => Err(failed(error)),
    }
}

/// Returns the former default prefix of table names.
pub(super) fn former_prefix() -> String {
    format!("{FORMER_NAME}_")
}

/// Returns whether a store of any layout is there, also under the former default prefix.
pub(super) async fn exists(connection: &mut Connection, tables: &Tables, is_default: bool) -> Result<bool> {
    Ok(schema_version(connection, tables).await? != 0 || is_default && is_under_former_name(connection).await?)
}

/// Returns whether a store of the first layout has the former default prefix.
pub(super) async fn is_under_former_name(connection: &mut Connection) -> Result<bool> {
    let version = schema_version(connection, &Tables::new(&former_prefix())).await?;
    Ok(matches!(version, FIRST | FIRST_MOVING))
}

/// Returns whether the tables exist, by their schema version; fails for former layouts and for newer versions.
fn is_made(version: u64) -> Result<bool> {
    match version {
        0 => Ok(false),
        FIRST..=ONE_COUNTER_MOVING => Err(OldLayout::error(None)),
        known if known == u64::from(SCHEMA) => Ok(true),
        _ => Err(Error::unsupported(format!(
            "the store's tables were written by a newer version (the schema is {version}, this program knows {SCHEMA}); upgrade this program"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, variables: &[(&str, &str)]) -> Result<ServerFacts> {
        let usual = [("max_allowed_packet", "16777216"), ("innodb_flush_log_at_trx_commit", "1"), ("innodb_doublewrite", "ON")];
        let variables = usual.iter().chain(variables).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        facts_of(version, &variables)
    }

    #[test]
    fn reported_durability_follows_the_servers_settings() {
        let sound = facts("10.11.19-MariaDB-0+deb12u1", &[("log_bin", "OFF"), ("sync_binlog", "0")]).expect("a server");
        assert_eq!((sound.engine.as_str(), sound.durability, sound.notices.len()), ("MariaDB 10.11.19", Durability::Power, 0));
        for (name, value) in [("innodb_flush_log_at_trx_commit", "2"), ("innodb_doublewrite", "OFF"), ("innodb_flush_method", "nosync")] {
            let facts = facts("8.4.3", &[(name, value)]).expect("a server");
            assert_eq!((facts.durability, facts.notices.len()), (Durability::Process, 1), "{name}");
        }
        let logged = facts("8.0.40", &[("log_bin", "ON"), ("sync_binlog", "1000")]).expect("a server");
        assert_eq!((logged.engine.as_str(), logged.durability), ("MySQL 8.0.40", Durability::Process));
    }

    #[test]
    fn galera_node_is_reported_with_what_its_cluster_may_lose() {
        let node = [
            ("wsrep_on", "ON"),
            ("wsrep_max_ws_size", "2147483647"),
            ("wsrep_provider_options", "pc.checksum = false; pc.ignore_sb = false"),
        ];
        let facts_of_node = facts("10.11.19-MariaDB", &node).expect("a server");
        assert_eq!(facts_of_node.engine, "MariaDB 10.11.19 in a Galera cluster");
        assert_eq!((facts_of_node.durability, facts_of_node.notices.len()), (Durability::Process, 1));
        assert_eq!(facts_of_node.value_bytes_max, (16 << 20) - PACKET_OVERHEAD_BYTES);
        let node = [("wsrep_on", "ON"), ("wsrep_max_ws_size", "4194304"), ("wsrep_provider_options", "a = b; pc.ignore_sb = true")];
        let facts_of_node = facts("10.11.19-MariaDB", &node).expect("a server");
        assert_eq!((facts_of_node.notices.len(), facts_of_node.value_bytes_max), (2, (4 << 20) - PACKET_OVERHEAD_BYTES));
        let alone = facts("10.11.19-MariaDB", &[("wsrep_on", "OFF"), ("wsrep_max_ws_size", "4194304")]).expect("a server");
        assert_eq!((alone.durability, alone.value_bytes_max), (Durability::Power, (16 << 20) - PACKET_OVERHEAD_BYTES));
    }

    #[test]
    fn old_server_or_small_packet_size_is_refused() {
        for (version, variable) in
            [("5.7.44", ("log_bin", "ON")), ("10.5.1-MariaDB", ("log_bin", "ON")), ("8.0.1", ("max_allowed_packet", "65536"))]
        {
            assert_eq!(facts(version, &[variable]).expect_err(version).kind(), ErrorKind::Unsupported);
        }
    }
}
