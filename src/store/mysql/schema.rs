//! The tables: how they are made and brought up to date, and how the server is set up.
//!
//! A definition of tables is committed by itself in MySQL, so each step may be cut off and done again: steps create what is not
//! there, and the number of the schema is written after them. The first of several processes does it under a lock of the
//! server; where a cluster has no such lock, both do, and nothing is lost.

use super::error::{Fault, damaged, failed, is_no_such_table};
use super::pool::{Connection, column};
use super::sql::Tables;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Durability;
use std::collections::HashMap;
use std::time::Duration;

/// What brings the tables from each version of the schema to the next, as statements on the named tables. Append only: a
/// database in the field may be at any of them.
///
/// Items and bodies are two tables, so that keys-only scans, counts and conditions never touch a page of bodies. Both are
/// clustered by the key, so that a scan reads what it returns and nothing beside it.
const MIGRATIONS: &[fn(&Tables) -> Vec<String>] = &[|tables| {
    let Tables { counter, items, bodies, namespaces, .. } = tables;
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
                namespace VARBINARY(1024) NOT NULL PRIMARY KEY,
                version BIGINT UNSIGNED NOT NULL
            ) {engine}"
        ),
        format!("CREATE TABLE IF NOT EXISTS {counter} (id TINYINT NOT NULL PRIMARY KEY, version BIGINT UNSIGNED NOT NULL) {engine}"),
        format!("INSERT IGNORE INTO {counter} VALUES (1, 0)"),
    ]
}];

/// The schema that this program writes.
pub(super) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// How long the first of several processes may take.
const LOCK_SECONDS: u32 = 60;

/// A packet must hold the largest statement that is not a body.
const PACKET_BYTES_MIN: u64 = 1 << 20;

/// What stands in a packet beside a body: the row's meta, its key and what the protocol adds.
const PACKET_OVERHEAD_BYTES: u64 = 128 << 10;

/// The largest body however large packets are.
const VALUE_BYTES_MAX: u64 = 512 << 20;

/// The largest body where packets have 16 MiB, the least that servers come with.
pub(super) const USUAL_VALUE_BYTES_MAX: u64 = (16 << 20) - PACKET_OVERHEAD_BYTES;

/// How a server is set up.
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

/// Reads how the server is set up. One round trip.
pub(super) async fn server_facts(connection: &mut Connection) -> Result<ServerFacts, Fault> {
    let sql = "SELECT VERSION(); SHOW VARIABLES WHERE Variable_name IN ('max_allowed_packet', 'wait_timeout', \
               'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'innodb_flush_method', 'log_bin', 'sync_binlog')";
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
        let message = format!("the server of the store is {engine}; it takes MySQL 8.0 or MariaDB 10.6 and newer");
        return Err(Error::unsupported(message));
    }
    let packet_bytes = number("max_allowed_packet").unwrap_or(PACKET_BYTES_MIN);
    if packet_bytes < PACKET_BYTES_MIN {
        let message = format!("the server of the store takes packets of {packet_bytes} bytes; set `max_allowed_packet` to 1M or more");
        return Err(Error::unsupported(message));
    }
    let mut notices = Vec::new();
    let flush = number("innodb_flush_log_at_trx_commit");
    if flush != Some(1) {
        notices.push(format!(
            "innodb_flush_log_at_trx_commit is {}: commits of the last second are lost when the machine loses power{}; set it to 1",
            flush.map_or_else(|| "unknown".to_owned(), |flush| flush.to_string()),
            if flush == Some(2) { "" } else { ", and when the server is killed" },
        ));
    }
    let is_on = |name: &str| variables.get(name).is_some_and(|value| value.eq_ignore_ascii_case("on") || value == "1");
    if is_on("log_bin") && number("sync_binlog") != Some(1) {
        notices.push(
            "sync_binlog is not 1: after a loss of power the server takes back commits that its binary log lacks; set it to 1".to_owned(),
        );
    }
    if !is_on("innodb_doublewrite") && variables.contains_key("innodb_doublewrite") {
        notices.push(
            "innodb_doublewrite is off: a page that is half written when power is lost is damaged, unless the disk writes whole pages"
                .to_owned(),
        );
    }
    if variables.get("innodb_flush_method").is_some_and(|method| method.to_ascii_lowercase().contains("nosync")) {
        notices.push("innodb_flush_method does not wait for the disk: commits are lost when the machine loses power".to_owned());
    }
    let durability = if notices.is_empty() { Durability::Power } else { Durability::Process };
    Ok(ServerFacts {
        engine,
        durability,
        notices,
        packet_bytes,
        value_bytes_max: (packet_bytes - PACKET_OVERHEAD_BYTES).min(VALUE_BYTES_MAX),
        wait_timeout: Duration::from_secs(number("wait_timeout").unwrap_or(28_800)),
    })
}

/// Brings the tables up to date, and makes them where there are none.
pub(super) async fn migrate(connection: &mut Connection, tables: &Tables) -> Result<()> {
    if checked(schema_version(connection, tables).await?)? == MIGRATIONS.len() {
        return Ok(());
    }
    let lock = format!("CONCAT('stratafs ', LEFT(SHA1(CONCAT(DATABASE(), ' ', '{}')), 40))", tables.prefix);
    let taken = connection.run(format!("SELECT GET_LOCK({lock}, {LOCK_SECONDS})")).await.map_err(failed)?;
    let is_taken = taken.into_iter().flatten().next().and_then(|mut row| column::<Option<u64>>(&mut row, 0).ok()).flatten() == Some(1);
    if !is_taken {
        let message = "another process is still making the store's tables; try again";
        return Err(Error::new(ErrorKind::Unavailable, message).without_effect());
    }
    migrate_locked(connection, tables).await?;
    connection.run(format!("SELECT RELEASE_LOCK({lock})")).await.map_err(failed)?;
    Ok(())
}

async fn migrate_locked(connection: &mut Connection, tables: &Tables) -> Result<()> {
    let done = checked(schema_version(connection, tables).await?)?;
    let Tables { schema, .. } = tables;
    if done == 0 {
        let sql = format!(
            "CREATE TABLE IF NOT EXISTS {schema} (id TINYINT NOT NULL PRIMARY KEY, version INT UNSIGNED NOT NULL) \
             ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4"
        );
        connection.run(sql).await.map_err(failed)?;
    }
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        for sql in migration(tables) {
            connection.run(sql).await.map_err(failed)?;
        }
        let version = index + 1;
        let sql =
            format!("INSERT INTO {schema} VALUES (1, {version}) ON DUPLICATE KEY UPDATE version = GREATEST(version, VALUES(version))");
        connection.run(sql).await.map_err(failed)?;
    }
    check_tables(connection, tables).await
}

/// Refuses tables of an engine without transactions, which a server may put in the place of the one that was asked for.
async fn check_tables(connection: &mut Connection, tables: &Tables) -> Result<()> {
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND ENGINE = 'InnoDB' AND ROW_FORMAT = 'Dynamic' \
         AND TABLE_NAME IN ('{0}schema', '{0}counter', '{0}items', '{0}bodies', '{0}namespaces')",
        tables.prefix
    );
    let rows = connection.run(sql).await.map_err(failed)?;
    let count = rows.into_iter().flatten().next().and_then(|mut row| column::<u64>(&mut row, 0).ok());
    if count == Some(5) {
        return Ok(());
    }
    let message = "the store's tables are not of InnoDB with rows of the dynamic format; drop them, and let the server offer it";
    Err(Error::unsupported(message))
}

/// Returns the number of the schema; 0 where there is none.
async fn schema_version(connection: &mut Connection, tables: &Tables) -> Result<u64> {
    match connection.run(format!("SELECT version FROM {} WHERE id = 1", tables.schema)).await {
        Ok(sets) => match sets.into_iter().flatten().next() {
            Some(mut row) => Ok(column(&mut row, 0)?),
            None => Ok(0),
        },
        Err(error) if is_no_such_table(&error) => Ok(0),
        Err(error) => Err(failed(error)),
    }
}

/// Returns how many migrations the tables have had.
fn checked(version: u64) -> Result<usize> {
    usize::try_from(version).ok().filter(|&version| version <= MIGRATIONS.len()).ok_or_else(|| {
        let known = MIGRATIONS.len();
        Error::unsupported(format!(
            "the store's tables were written by a newer version (the schema is {version}, this program knows {known}); upgrade"
        ))
    })
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
    fn durability_is_what_the_server_is_set_to() {
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
    fn a_server_that_is_too_old_or_too_narrow_is_refused() {
        for (version, variable) in
            [("5.7.44", ("log_bin", "ON")), ("10.5.1-MariaDB", ("log_bin", "ON")), ("8.0.1", ("max_allowed_packet", "65536"))]
        {
            assert_eq!(facts(version, &[variable]).expect_err(version).kind(), ErrorKind::Unsupported);
        }
    }
}
