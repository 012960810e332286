//! The tables: how they are recognised and created.
//!
//! They are in a schema of their own, whose version number, in `schema_version`, only increases. A store with the current number is opened
//! without changes, so regular operation needs no right to create anything. Several processes may open an empty database at once: they take
//! turns by locking the row with the number, and those that collide before it exists fail in the catalogue and try again.

use super::connect::{IS_CITUS, Target};
use super::error::{failed, is_lost};
use deadpool_postgres::ClientWrapper;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::migrate::{FORMER_NAME, OldLayout};

/// The tables of the present layout; `{s}` stands for the schema, and `{c}` for the collation of texts, which is the order of bytes.
///
/// The partition leads every primary key: an engine that distributes tables does so by it. A key is stored as a head and a tail, see
/// [`key`](super::key). `partitions` has the version counter of each partition, which its writers lock; `starts` is for the statements of
/// one commit, see [`step`](super::step). `namespaces` lists at least those that have rows. `first_version` is what the counters of new
/// partitions start at.
const CREATION: &str = r#"
    CREATE TABLE {s}.partitions(
        partition text{c} PRIMARY KEY,
        version bigint NOT NULL,
        starts bigint[]
    );
    CREATE TABLE {s}.namespaces(
        partition text{c} NOT NULL,
        name text{c} NOT NULL,
        PRIMARY KEY (partition, name)
    );
    CREATE TABLE {s}.rows(
        partition text{c} NOT NULL,
        name text{c} NOT NULL,
        head text{c} NOT NULL,
        tail text{c} NOT NULL,
        tail_digest bytea NOT NULL,
        version bigint NOT NULL,
        created_at bigint NOT NULL,
        modified_at bigint NOT NULL,
        expires_at bigint,
        size bigint NOT NULL,
        meta bytea NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (partition, name, head, tail_digest)
    );
    CREATE INDEX rows_by_expiry ON {s}.rows(expires_at) WHERE expires_at IS NOT NULL;
"#;

/// The steps from the first number to the third, within [`migrate`](super::migrate). The first renames `items` to `rows`, so that servers of
/// the first layout do not find it. The second renames `counter`, without which servers of the second layout cannot write.
const RENAMES: [&str; 2] = ["ALTER TABLE {s}.items RENAME TO rows", "ALTER TABLE {s}.counter RENAME TO version_counter"];

/// The step from the third number to the fourth: until then, namespaces were whole, and one counter was for all. Servers of that version
/// find no column of theirs.
const TO_PARTITIONS: &str = r#"
    ALTER TABLE {s}.schema_version ADD COLUMN first_version bigint NOT NULL DEFAULT 0;
    UPDATE {s}.schema_version SET first_version = (SELECT version FROM {s}.version_counter WHERE id = 1);
    ALTER TABLE {s}.rows DROP CONSTRAINT items_pkey;
    ALTER TABLE {s}.rows RENAME COLUMN namespace TO name;
    ALTER TABLE {s}.rows ADD COLUMN partition text COLLATE "C";
    UPDATE {s}.rows SET partition = substring(name FROM '^[^/]*/[^/]*/'), name = regexp_replace(name, '^[^/]*/[^/]*/', '');
    ALTER TABLE {s}.rows ALTER COLUMN partition SET NOT NULL;
    ALTER TABLE {s}.rows ADD CONSTRAINT rows_pkey PRIMARY KEY (partition, name, head, tail_digest);
    ALTER INDEX {s}.items_by_expiry RENAME TO rows_by_expiry;
    CREATE TABLE {s}.partitions(partition text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, starts bigint[]);
    CREATE TABLE {s}.namespaces(partition text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, PRIMARY KEY (partition, name));
    INSERT INTO {s}.namespaces SELECT DISTINCT partition, name FROM {s}.rows;
    INSERT INTO {s}.partitions(partition, version)
        SELECT DISTINCT n.partition, c.version FROM {s}.namespaces n CROSS JOIN {s}.version_counter c WHERE c.id = 1;
    DROP TABLE {s}.touched;
    DROP TABLE {s}.version_counter;
"#;

/// Optional settings that make a new store faster, skipped if the engine does not know them. Bodies are mostly compressed or short, and
/// trying to compress each costs more than it saves.
const TUNING: &[&str] = &["ALTER TABLE {s}.rows ALTER COLUMN body SET STORAGE EXTERNAL"];

/// The schema version that this program writes.
pub(super) const SCHEMA: u32 = 4;

/// The schema version of the first layout.
pub(super) const FIRST_LAYOUT: u32 = 1;

/// The schema version in which namespaces have their present names, but one counter was for all.
pub(super) const ONE_COUNTER: u32 = 3;

/// Returns whether a schema version is that of a former layout.
pub(super) fn is_former(number: u32) -> bool {
    (FIRST_LAYOUT..SCHEMA).contains(&number)
}

/// Returns the statements that give the tables of a former version the names of [`ONE_COUNTER`]; `schema` is its quoted name.
pub(super) fn renames_from(number: u32, schema: &str) -> impl Iterator<Item = String> {
    let done = number.min(ONE_COUNTER) - FIRST_LAYOUT;
    RENAMES[done as usize..].iter().map(move |rename| rename.replace("{s}", schema))
}

/// Returns the statements that lead from [`ONE_COUNTER`] to the present version.
pub(super) fn to_partitions(schema: &str) -> String {
    TO_PARTITIONS.replace("{s}", schema)
}

/// How often a migration yields to that of another process.
const YIELDS_MAX: u32 = 12;

/// The pause in between.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));

/// Where a store is, and what its engine needs.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    /// The quoted name of the schema.
    pub(super) schema: String,
    /// What the counter of a new partition starts at.
    pub(super) first_version: i64,
    /// What follows a text to sort it by bytes.
    pub(super) collation: &'static str,
    /// Whether a coordinator sends statements to the node that has the partition they name.
    pub(super) is_sharded: bool,
}

impl Tables {
    /// Returns the end of a subquery within a condition that keeps the planner from reading all its rows first: it looks up one for each. Over
    /// the nodes of a cluster there can be none, and each node has its own plan.
    pub(super) fn barrier(&self) -> &'static str {
        if self.is_sharded { "" } else { " OFFSET 0" }
    }
}

/// Creates the tables if there are none.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) for tables of a newer version, for the earlier layout, or for a database whose text is not
/// UTF-8; [`Corrupt`](ErrorKind::Corrupt) for tables of another program. A refused store is not changed.
pub(super) async fn open(connection: &ClientWrapper, target: &Target) -> Result<Tables> {
    check_encoding(connection).await?;
    let name = target.schema.as_str();
    let schema = &quoted(name);
    let engine = format!("SELECT version() LIKE 'CockroachDB%', {IS_CITUS}");
    let engine = connection.query_one(&engine, &[]).await.map_err(failed)?;
    // CockroachDB has no such collation of columns, and sorts texts by bytes.
    let collation = if engine.try_get(0).map_err(failed)? { "" } else { " COLLATE \"C\"" };
    let is_sharded = engine.try_get(1).map_err(failed)?;
    for attempt in 0..YIELDS_MAX {
        match check_number(number(connection, name, schema).await?)? {
            SCHEMA => {
                let sql = format!("SELECT first_version FROM {schema}.schema_version WHERE id = 1");
                let first_version = connection.query_one(&sql, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
                return Ok(Tables { schema: schema.clone(), first_version, collation, is_sharded });
            }
            former if is_former(former) => return Err(OldLayout::error(None)),
            _ => {}
        }
        if attempt == 0 && target.is_default && is_under_former_name(connection).await? {
            return Err(OldLayout::error(Some(format!("the schema `{FORMER_NAME}` holds it").into())));
        }
        match create(connection, name, schema, collation).await {
            // Read it like the others.
            Ok(()) => continue,
            Err(Fault::Refused(error)) => return Err(error),
            Err(Fault::Engine(error)) => {
                if is_lost(&error) || !may_be_race(&error) {
                    return Err(failed(error));
                }
                // Report the failure if it is not a race: another process would have finished by now.
                if attempt + 1 == YIELDS_MAX {
                    let message = "the schema of the store holds tables of another program; name another one with `schema`";
                    return Err(Error::new(ErrorKind::Corrupt, message).with_source(error));
                }
            }
        }
        BACKOFF.wait(attempt).await;
    }
    Err(Error::new(ErrorKind::Unavailable, "another process is still creating the store's tables; try again"))
}

async fn check_encoding(connection: &ClientWrapper) -> Result<()> {
    let row = connection.query_one("SHOW server_encoding", &[]).await.map_err(failed)?;
    let encoding: String = row.try_get(0).map_err(failed)?;
    if encoding.eq_ignore_ascii_case("UTF8") || encoding.eq_ignore_ascii_case("UTF-8") {
        return Ok(());
    }
    Err(Error::unsupported(format!("the database stores text as `{encoding}`; create one with the encoding UTF8")))
}

/// Returns how many migrations were applied to the store, or `None` if it does not exist.
pub(super) async fn number(connection: &ClientWrapper, name: &str, schema: &str) -> Result<Option<i32>> {
    let known = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = $1::text AND tablename = 'schema_version'";
    let row = connection.query_one(known, &[&name]).await.map_err(failed)?;
    if row.try_get::<_, i64>(0).map_err(failed)? == 0 {
        return Ok(None);
    }
    let row = connection.query_opt(&format!("SELECT version FROM {schema}.schema_version WHERE id = 1"), &[]).await.map_err(failed)?;
    row.map(|row| row.try_get(0).map_err(failed)).transpose()
}

/// Returns whether a store of any layout is there, also under the former default name.
pub(super) async fn exists(connection: &ClientWrapper, target: &Target) -> Result<bool> {
    // Zero is the number of tables that are not made yet.
    let number = number(connection, &target.schema, &quoted(&target.schema)).await?;
    Ok(number.is_some_and(|number| number != 0) || target.is_default && is_under_former_name(connection).await?)
}

/// Returns whether a store of the first layout is in the former default schema.
pub(super) async fn is_under_former_name(connection: &ClientWrapper) -> Result<bool> {
    Ok(number(connection, FORMER_NAME, &quoted(FORMER_NAME)).await? == Some(FIRST_LAYOUT as i32))
}

/// Returns how many migrations were applied to a store, unless it is newer than this program.
pub(super) fn check_number(number: Option<i32>) -> Result<u32> {
    let number = number.unwrap_or(0);
    u32::try_from(number).ok().filter(|&number| number <= SCHEMA).ok_or_else(|| {
        Error::unsupported(format!(
            "the store's tables were written by a newer version (the schema is {number}, this program knows {SCHEMA}); upgrade this program"
        ))
    })
}

/// Why tables were not created.
enum Fault {
    Refused(Error),
    Engine(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Engine(error)
    }
}

async fn create(connection: &ClientWrapper, name: &str, schema: &str, collation: &str) -> Result<(), Fault> {
    connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
    match create_within(connection, name, schema, collation).await {
        Ok(is_new) => {
            connection.batch_execute("COMMIT").await?;
            for tuning in TUNING.iter().filter(|_| is_new) {
                if let Err(error) = connection.batch_execute(&tuning.replace("{s}", schema)).await {
                    tracing::debug!(%error, "a setting that makes a store faster is not known to its engine");
                }
            }
            Ok(())
        }
        Err(fault) => {
            // If even this fails, the connection is not used again.
            let _ = connection.batch_execute("ROLLBACK").await;
            Err(fault)
        }
    }
}

/// Creates the tables within a transaction. Returns whether there was no store before.
async fn create_within(connection: &ClientWrapper, name: &str, schema: &str, collation: &str) -> Result<bool, Fault> {
    let known = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = $1::text";
    if connection.query_one(known, &[&name]).await?.try_get::<_, i64>(0)? == 0 {
        connection.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
    }
    let create = format!(
        "CREATE TABLE IF NOT EXISTS {schema}.schema_version(id int4 PRIMARY KEY, version int4 NOT NULL, first_version bigint NOT NULL DEFAULT 0);
         INSERT INTO {schema}.schema_version(id, version) VALUES (1, 0) ON CONFLICT (id) DO NOTHING"
    );
    connection.batch_execute(&create).await?;
    let row = connection.query_one(&format!("SELECT version FROM {schema}.schema_version WHERE id = 1 FOR UPDATE"), &[]).await?;
    let done = check_number(Some(row.try_get(0)?)).map_err(Fault::Refused)?;
    if is_former(done) {
        return Err(Fault::Refused(OldLayout::error(None)));
    }
    if done == SCHEMA {
        return Ok(false);
    }
    connection.batch_execute(&CREATION.replace("{s}", schema).replace("{c}", collation)).await?;
    connection.execute(&format!("UPDATE {schema}.schema_version SET version = {SCHEMA} WHERE id = 1"), &[]).await?;
    Ok(true)
}

/// Returns whether a concurrent creation by another process may explain a failure.
fn may_be_race(error: &tokio_postgres::Error) -> bool {
    // The last is the catalogue's `tuple concurrently updated`.
    error.code().is_some_and(|code| {
        [
            SqlState::UNIQUE_VIOLATION,
            SqlState::DUPLICATE_TABLE,
            SqlState::DUPLICATE_SCHEMA,
            SqlState::DUPLICATE_OBJECT,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::INTERNAL_ERROR,
        ]
        .contains(code)
    })
}

/// Quotes an identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a b"), "\"a b\"");
        assert_eq!(quoted("a\".b"), "\"a\"\".b\"");
    }

    #[test]
    fn newer_format_is_unsupported() {
        assert_eq!(check_number(None).expect("nothing exists there"), 0);
        assert_eq!(check_number(Some(SCHEMA as i32)).expect("it is known"), SCHEMA);
        for number in [SCHEMA as i32 + 1, -1] {
            assert_eq!(check_number(Some(number)).expect_err("the version is unknown").kind(), ErrorKind::Unsupported);
        }
    }
}
