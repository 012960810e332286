//! Reports about a store: the engine and its settings, the amount of data, and its integrity.

use super::LONG_TIMEOUT;
use super::connect::{Connections, run};
use super::error::{damaged, failed};
use super::schema::SCHEMA;
use super::script::Script;
use deadpool_postgres::ClientWrapper;
use tokio_postgres::Row;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Durability;
use treehold_store::{StoreDescription, StoreStats};

/// The server's settings.
pub(super) struct Setup {
    version: String,
    settings: Vec<(String, String)>,
}

/// Returns the query for them.
pub(super) fn setup_script() -> Script<'static> {
    Script::new(
        "SELECT v.version, s.name::text, s.setting::text FROM (SELECT version() AS version) v
         LEFT JOIN pg_catalog.pg_settings s ON s.name IN ('fsync', 'full_page_writes', 'server_version', 'synchronous_commit')",
    )
}

/// Queries the server's settings and, in the same round trip, whether the rows of a schema were ever analysed, which the server does
/// automatically unless that is disabled.
///
/// Only engines that keep these statistics can answer. Others refuse the whole query; use [`setup_script`] for them.
pub(super) fn description_script(schema: &str) -> Script<'static> {
    let table = format!("'{}.rows'::regclass", schema.replace('\'', "''"));
    let mut script = setup_script();
    script.push(&format!(
        " UNION ALL
         SELECT version(), '{UNANALYSED}', (pg_relation_size({table}) / 1048576)::text FROM pg_catalog.pg_stat_user_tables
         WHERE relid = {table} AND last_analyze IS NULL AND last_autoanalyze IS NULL AND pg_relation_size({table}) > {UNANALYSED_BYTES_MAX}"
    ));
    script
}

/// Queries them on one connection.
pub(super) async fn setup(connection: &ClientWrapper) -> Result<Setup> {
    Setup::of(&run(connection, &setup_script()).await.map_err(failed)?)
}

impl Setup {
    /// Decodes the answer.
    pub(super) fn of(rows: &[Row]) -> Result<Self> {
        let mut setup = Self { version: String::new(), settings: Vec::new() };
        for row in rows {
            setup.version = row.try_get(0).map_err(failed)?;
            if let (Some(name), Some(setting)) = (row.try_get(1).map_err(failed)?, row.try_get(2).map_err(failed)?) {
                setup.settings.push((name, setting));
            }
        }
        Ok(setup)
    }

    fn is_off(&self, name: &str) -> bool {
        self.settings.iter().any(|(known, setting)| known == name && setting == "off")
    }

    /// Returns what an acknowledged commit survives. An engine without any of these settings is trusted.
    pub(super) fn durability(&self) -> Durability {
        if self.is_off("synchronous_commit") {
            Durability::None
        } else if self.is_off("fsync") || self.is_off("full_page_writes") {
            Durability::Process
        } else {
            Durability::Power
        }
    }

    /// Describes the engine.
    pub(super) fn describe(&self) -> StoreDescription {
        let mut description = StoreDescription::new(self.engine(), self.durability()).with_schema(SCHEMA);
        for (name, consequence) in [
            (
                "synchronous_commit",
                "commits are acknowledged before they are in the server's log, and a crash of the server loses the newest",
            ),
            ("fsync", "the server does not wait for its disk, and a power failure may lose or damage everything"),
            ("full_page_writes", "a page that a power failure leaves half written cannot be repaired"),
        ] {
            if self.is_off(name) {
                description = description.with_notice(format!("{name} is off: {consequence}"));
            }
        }
        if let Some((_, size_mib)) = self.settings.iter().find(|(name, _)| name == UNANALYSED) {
            description = description.with_notice(format!(
                "the table `rows` has {size_mib} MiB and was never analysed: turn on autovacuum, which reclaims the \
                    space of deleted rows, and run ANALYZE"
            ));
        }
        description
    }

    fn engine(&self) -> String {
        // `PostgreSQL 15.2 (Debian …) on x86_64…`, `CockroachDB CCL v23.1.11 (…) …`.
        let mut words = self.version.split_whitespace();
        let name = words.next().unwrap_or("PostgreSQL");
        let number = words.find(|word| word.trim_start_matches('v').starts_with(|first: char| first.is_ascii_digit()));
        match number {
            Some(number) => format!("{name} {}", number.trim_end_matches(',')),
            None => name.to_owned(),
        }
    }
}

/// The size in bytes from which a table that was never analysed is reported.
const UNANALYSED_BYTES_MAX: i64 = 16 << 20;

/// The name among the settings for the size in MiB of a table that was never analysed.
const UNANALYSED: &str = "unanalysed_mib";

/// Counts the content of the store.
pub(super) async fn stats(connections: &Connections, schema: &str, now: i64) -> Result<StoreStats> {
    let mut script = Script::default();
    let now_at = script.parameter(now);
    let is_live = format!("(i.expires_at IS NULL OR i.expires_at > {now_at}::bigint)");
    script.push(&format!(
        "SELECT count(*) FILTER (WHERE {is_live}), count(*) FILTER (WHERE NOT {is_live}),
                COALESCE(sum(octet_length(i.meta)) FILTER (WHERE {is_live}), 0)::bigint,
                COALESCE(sum(i.size) FILTER (WHERE {is_live}), 0)::bigint
         FROM {schema}.rows i"
    ));
    let mut stats = StoreStats::new();
    for row in connections.read_within(LONG_TIMEOUT, &script).await? {
        let number = |column| -> Result<u64> { Ok(row.try_get::<_, i64>(column).map_err(failed)?.max(0).unsigned_abs()) };
        (stats.items, stats.expired, stats.meta_bytes, stats.value_bytes) = (number(0)?, number(1)?, number(2)?, number(3)?);
    }
    let mut script = Script::default();
    let now = script.parameter(now);
    script.push(&format!(
        "SELECT count(*) FROM {schema}.namespaces n WHERE EXISTS (
           SELECT 1 FROM {schema}.rows i WHERE i.partition = n.partition AND i.name = n.name AND (i.expires_at IS NULL OR i.expires_at > {now}))"
    ));
    let rows = connections.read_within(LONG_TIMEOUT, &script).await?;
    let namespaces: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(failed)?;
    stats.namespaces = namespaces.unsigned_abs();
    // Not every engine supports this.
    let size = Script::new(format!("SELECT pg_total_relation_size('{}.rows')", schema.replace('\'', "''")));
    if let Ok(rows) = connections.read_within(LONG_TIMEOUT, &size).await {
        stats.stored_bytes = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()).map(|bytes| bytes.max(0).unsigned_abs());
    }
    Ok(stats)
}

/// Looks for damage. Reads every body, so that the engine detects what it cannot read.
pub(super) async fn check(connections: &Connections, schema: &str) -> Result<Vec<Error>> {
    let mut found = Vec::new();
    for (sql, what) in [
        (
            "SELECT count(*) FROM {s}.rows r LEFT JOIN {s}.partitions p ON p.partition = r.partition WHERE p.partition IS NULL",
            "there are rows in a partition whose version counter is missing",
        ),
        (
            "SELECT count(*) FROM {s}.rows r JOIN {s}.partitions p ON p.partition = r.partition WHERE r.version > p.version OR r.version < 0",
            "there are rows newer than the version counter",
        ),
        (
            "SELECT count(*) FROM {s}.rows r LEFT JOIN {s}.namespaces n ON n.partition = r.partition AND n.name = r.name WHERE n.partition IS NULL",
            "there are rows in a namespace that is not listed",
        ),
        ("SELECT count(*) FROM {s}.rows WHERE size <> octet_length(body || ''::bytea)", "there are rows without their body"),
        (
            "SELECT count(*) FROM {s}.rows WHERE (tail = '') <> (octet_length(tail_digest) = 0) OR head = ''
             OR char_length(head) > 384 OR (tail <> '' AND char_length(head) <> 384)",
            "there are rows whose key is split in the wrong place",
        ),
    ] {
        let script = Script::new(sql.replace("{s}", schema));
        match connections.read_within(LONG_TIMEOUT, &script).await {
            Ok(rows) => {
                let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(failed)?;
                if count != 0 {
                    found.push(damaged(&format!("{what} ({count})")));
                }
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => found.push(error),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(version: &str, settings: &[(&str, &str)]) -> Setup {
        let settings = settings.iter().map(|(name, setting)| ((*name).to_owned(), (*setting).to_owned())).collect();
        Setup { version: version.to_owned(), settings }
    }

    #[test]
    fn description_names_the_engine_and_its_version() {
        for (version, engine) in [
            ("PostgreSQL 15.20 (Debian 15.20-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc", "PostgreSQL 15.20"),
            ("CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27 01:53:43, go1.19.10)", "CockroachDB v23.1.11"),
            ("PostgreSQL 11.2-YB-2.19.3.0-b0 on x86_64-pc-linux-gnu", "PostgreSQL 11.2-YB-2.19.3.0-b0"),
            ("something", "something"),
        ] {
            assert_eq!(setup(version, &[]).engine(), engine);
        }
    }

    #[test]
    fn durability_follows_the_server_settings() {
        for (off, durability) in [
            (&[][..], Durability::Power),
            (&["fsync"], Durability::Process),
            (&["full_page_writes"], Durability::Process),
            (&["synchronous_commit"], Durability::None),
            (&["fsync", "synchronous_commit"], Durability::None),
        ] {
            let settings: Vec<_> = ["fsync", "full_page_writes", "synchronous_commit"]
                .map(|name| (name, if off.contains(&name) { "off" } else { "on" }))
                .to_vec();
            let setup = setup("PostgreSQL 17.2", &settings);
            assert_eq!(setup.durability(), durability, "{off:?}");
            assert_eq!(setup.describe().notices.len(), off.len());
        }
        assert_eq!(setup("CockroachDB CCL v23.1.11", &[]).durability(), Durability::Power);
    }
}
