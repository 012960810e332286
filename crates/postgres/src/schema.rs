//! The tables: how they are recognised, created and migrated.
//!
//! They are in a schema of their own, whose version number, in `schema_version`, only increases. A store with the current number is opened
//! without changes, so regular operation needs no right to create anything. Several processes may open an empty database at once: they take
//! turns by locking the row with the number, and those that collide before it exists fail in the catalogue and try again.

use super::connect::Target;
use super::error::{failed, is_lost};
use deadpool_postgres::ClientWrapper;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::migrate::{FORMER_NAME, OldLayout};

/// The migrations from each number to the next; `{s}` stands for the schema. Append only: a deployed database may be at any of them.
///
/// The second migration renames `items` to `rows`, so that servers of the first layout do not find it. The third one renames `counter`,
/// without which servers of the second layout cannot write. Existing stores take these steps only within [`migrate`](super::migrate).
///
/// A key is stored as a head and a tail, see [`key`](super::key). For watches, `touched` stores the version since which a namespace may
/// have changed; its row for the namespace `''` stores that version for namespaces without a row.
const MIGRATIONS: &[&str] = &[
    r#"
    CREATE TABLE {s}.counter(id int PRIMARY KEY, version bigint NOT NULL);
    INSERT INTO {s}.counter VALUES (1, 0);
    CREATE TABLE {s}.items(
        namespace text COLLATE "C" NOT NULL,
        head text COLLATE "C" NOT NULL,
        tail text COLLATE "C" NOT NULL,
        tail_digest bytea NOT NULL,
        version bigint NOT NULL,
        created_at bigint NOT NULL,
        modified_at bigint NOT NULL,
        expires_at bigint,
        size bigint NOT NULL,
        meta bytea NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (namespace, head, tail_digest)
    );
    CREATE INDEX items_by_expiry ON {s}.items(expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE {s}.touched(namespace text COLLATE "C" PRIMARY KEY, version bigint NOT NULL);
"#,
    "ALTER TABLE {s}.items RENAME TO rows",
    "ALTER TABLE {s}.counter RENAME TO version_counter",
];

/// Optional settings that make a new store faster, skipped if the engine does not know them. Bodies are mostly compressed or short, and
/// trying to compress each costs more than it saves.
const TUNING: &[&str] = &["ALTER TABLE {s}.rows ALTER COLUMN body SET STORAGE EXTERNAL"];

/// The schema version that this program writes.
pub(super) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// The schema version of the first layout.
pub(super) const FIRST_LAYOUT: u32 = 1;

/// The first schema version of the present layout.
const PRESENT_LAYOUT: u32 = 3;

/// Returns whether a schema version is that of a former layout.
pub(super) fn is_former(number: u32) -> bool {
    (FIRST_LAYOUT..PRESENT_LAYOUT).contains(&number)
}

/// Returns the statements that change the tables from a schema version to the present one; `schema` is its quoted name.
pub(super) fn migrations_from(number: u32, schema: &str) -> impl Iterator<Item = String> {
    MIGRATIONS[number as usize..].iter().map(move |migration| migration.replace("{s}", schema))
}

/// How often a migration yields to that of another process.
const YIELDS_MAX: u32 = 12;

/// The pause in between.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));

/// Migrates the tables to the current version; `schema` is the quoted name of the target's.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) for tables of a newer version, for the earlier layout, or for a database whose text is not
/// UTF-8; [`Corrupt`](ErrorKind::Corrupt) for tables of another program. A refused store is not changed.
pub(super) async fn open(connection: &ClientWrapper, target: &Target, schema: &str) -> Result<()> {
    check_encoding(connection).await?;
    let name = target.schema.as_str();
    for attempt in 0..YIELDS_MAX {
        match check_number(number(connection, name, schema).await?)? {
            SCHEMA => return Ok(()),
            former if is_former(former) => return Err(OldLayout::error(None)),
            _ => {}
        }
        if attempt == 0 && target.is_default && is_under_former_name(connection).await? {
            return Err(OldLayout::error(Some(format!("the schema `{FORMER_NAME}` holds it").into())));
        }
        match migrate(connection, name, schema).await {
            Ok(()) => return Ok(()),
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

/// Why a migration did not complete.
enum Fault {
    Refused(Error),
    Engine(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Engine(error)
    }
}

async fn migrate(connection: &ClientWrapper, name: &str, schema: &str) -> Result<(), Fault> {
    connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
    match migrate_within(connection, name, schema).await {
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

/// Migrates within a transaction. Returns whether there was no store before.
async fn migrate_within(connection: &ClientWrapper, name: &str, schema: &str) -> Result<bool, Fault> {
    let known = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = $1::text";
    if connection.query_one(known, &[&name]).await?.try_get::<_, i64>(0)? == 0 {
        connection.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
    }
    let create = format!(
        "CREATE TABLE IF NOT EXISTS {schema}.schema_version(id int PRIMARY KEY, version int NOT NULL);
         INSERT INTO {schema}.schema_version VALUES (1, 0) ON CONFLICT (id) DO NOTHING"
    );
    connection.batch_execute(&create).await?;
    let row = connection.query_one(&format!("SELECT version FROM {schema}.schema_version WHERE id = 1 FOR UPDATE"), &[]).await?;
    let done = check_number(Some(row.try_get(0)?)).map_err(Fault::Refused)?;
    if is_former(done) {
        return Err(Fault::Refused(OldLayout::error(None)));
    }
    for migration in migrations_from(done, schema) {
        connection.batch_execute(&migration).await?;
    }
    connection.execute(&format!("UPDATE {schema}.schema_version SET version = {SCHEMA} WHERE id = 1"), &[]).await?;
    Ok(done == 0)
}

/// Returns whether a concurrent migration of another process may explain a failure.
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
