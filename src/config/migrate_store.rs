//! The migration of stores of the former layout, and of the default file under the former name of the product.

use super::open_store::OpenStoreOptions;
use super::stores::Engine;
use super::{Config, Place};
use std::path::{Path, PathBuf};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::{MigrateOptions, MigrateProgress, MigrateReport};

/// The file name of the default store, and its former one.
const FILE: &str = "treehold.db";
const FORMER_FILE: &str = "stratafs.db";

/// The name of the default data directory, and its former one.
const DIRECTORY: &str = "treehold";
const FORMER_DIRECTORY: &str = "stratafs";

/// Migrates the store at a URL from the former layout to the present one. `tell` receives the progress.
///
/// A default file or server store under the former name of the product is taken over.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid URL. [`NotFound`](ErrorKind::NotFound) if there is no store.
/// [`Unavailable`](ErrorKind::Unavailable) if other processes use it. [`Unsupported`](ErrorKind::Unsupported) for an engine that
/// this program was built without. Otherwise those of the engine's `migrate`.
pub async fn migrate_store(
    url: &str,
    options: &OpenStoreOptions,
    how: &MigrateOptions,
    tell: impl FnMut(MigrateProgress) + Send,
) -> Result<MigrateReport> {
    let engine = Engine::named(url, &Config::builtin(&Place::new(&options.directory, &options.directory)))?;
    migrate(engine, how, tell).await
}

impl Config {
    /// Migrates a store of the configuration, see [`migrate_store`].
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown name; otherwise as [`migrate_store`].
    pub async fn migrate_store(&self, name: &str, how: &MigrateOptions, tell: impl FnMut(MigrateProgress) + Send) -> Result<MigrateReport> {
        // Fails with the names of the stores if there is none with this name.
        self.stores()?.get(name)?;
        let url = &self.stores[name].url;
        migrate(Engine::named(url, self)?, how, tell).await
    }
}

/// Returns the default file under the former name of the product, if the default file is missing and that one exists: in the same
/// directory, or in the former default data directory.
pub(super) fn former_file(file: &Path) -> Option<PathBuf> {
    if file.file_name()? != FILE || file.exists() {
        return None;
    }
    let directory = file.parent()?;
    let beside = directory.join(FORMER_FILE);
    let elsewhere = (directory.file_name()? == DIRECTORY).then(|| directory.with_file_name(FORMER_DIRECTORY).join(FORMER_FILE));
    [Some(beside), elsewhere].into_iter().flatten().find(|former| former.is_file())
}

async fn migrate(engine: Engine, how: &MigrateOptions, mut tell: impl FnMut(MigrateProgress) + Send) -> Result<MigrateReport> {
    match engine {
        Engine::Memory => Ok(MigrateReport::up_to_date()),
        Engine::Sqlite(file) => blocking(how, tell, move |how, tell| migrate_sqlite(&file, how, tell)).await,
        Engine::Sled(directory) => blocking(how, tell, move |how, tell| migrate_sled(&directory, how, tell)).await,
        Engine::Postgres(url) => migrate_postgres(url, how, &mut tell).await,
        Engine::Mysql(url) => migrate_mysql(url, how, &mut tell).await,
        Engine::Redis(url) => migrate_redis(url, how, &mut tell).await,
    }
}

/// Runs a blocking migration on a blocking thread, and passes its progress on.
async fn blocking(
    how: &MigrateOptions,
    mut tell: impl FnMut(MigrateProgress) + Send,
    run: impl FnOnce(&MigrateOptions, &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> + Send + 'static,
) -> Result<MigrateReport> {
    let (told, mut progress) = tokio::sync::watch::channel(MigrateProgress::default());
    let how = how.clone();
    let mut done = tokio::task::spawn_blocking(move || run(&how, &mut |at| _ = told.send(at)));
    loop {
        tokio::select! {
            biased;
            done = &mut done => {
                return done.map_err(|error| Error::new(ErrorKind::Internal, "the migration was interrupted; run it again").with_source(error))?;
            }
            Ok(()) = progress.changed() => tell(*progress.borrow_and_update()),
        }
    }
}

#[cfg(feature = "sqlite")]
fn migrate_sqlite(file: &Path, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
    use treehold_core::error::AtHost;
    use treehold_sqlite::{SqliteOptions, SqliteStore};
    use treehold_store::MigrateOutcome;
    let Some(former) = former_file(file) else { return SqliteStore::migrate(&SqliteOptions::new(file), how, tell) };
    // If killed between the two steps, the next run finds the file migrated and moves it.
    let mut report = SqliteStore::migrate(&SqliteOptions::new(&former), how, tell)?;
    report.taken_from = Some(former.display().to_string());
    report.outcome = if how.dry_run { MigrateOutcome::Planned } else { MigrateOutcome::Migrated };
    if !how.dry_run {
        super::stores::create_parent(file)?;
        // No process has the file open, as the migration ensured, so there is no write-ahead log left.
        SqliteStore::take_over(&former, file).map_err(|cause| {
            let message = "the migrated file cannot be moved to its new name; move it there, or name it in the configuration";
            Error::new(ErrorKind::Unavailable, message).with_source(AtHost::new(&former).with_cause(cause))
        })?;
    }
    Ok(report)
}

#[cfg(feature = "sled")]
fn migrate_sled(directory: &Path, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
    treehold_sled::SledStore::migrate(&treehold_sled::SledOptions::new(directory), how, tell)
}

#[cfg(feature = "postgres")]
async fn migrate_postgres(url: String, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
    treehold_postgres::PostgresStore::migrate(&treehold_postgres::PostgresOptions::new(url), how, tell).await
}

#[cfg(feature = "mysql")]
async fn migrate_mysql(url: String, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
    treehold_mysql::MysqlStore::migrate(&treehold_mysql::MysqlOptions::new(url), how, tell).await
}

#[cfg(feature = "redis")]
async fn migrate_redis(url: String, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
    treehold_redis::RedisStore::migrate(&treehold_redis::RedisOptions::new(url), how, tell).await
}

/// Defines the migration of an engine that this program was built without.
#[allow(unused_macros, reason = "unused if all engines are built in")]
macro_rules! absent {
    ($feature:literal, blocking $name:ident) => {
        #[cfg(not(feature = $feature))]
        fn $name(_: &Path, _: &MigrateOptions, _: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
            Err(super::stores::built_without($feature))
        }
    };
    ($feature:literal, $name:ident) => {
        #[cfg(not(feature = $feature))]
        async fn $name(_: String, _: &MigrateOptions, _: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
            Err(super::stores::built_without($feature))
        }
    };
}
absent!("sqlite", blocking migrate_sqlite);
absent!("sled", blocking migrate_sled);
absent!("postgres", migrate_postgres);
absent!("mysql", migrate_mysql);
absent!("redis", migrate_redis);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_default_file_is_found_only_while_the_default_file_is_missing() {
        let root = tempfile::tempdir().expect("a directory");
        let (directory, former) = (root.path().join("treehold"), root.path().join("stratafs"));
        std::fs::create_dir(&directory).expect("made");
        std::fs::create_dir(&former).expect("made");
        let file = directory.join("treehold.db");
        assert_eq!(former_file(&file), None);
        std::fs::write(former.join("stratafs.db"), "").expect("written");
        assert_eq!(former_file(&file), Some(former.join("stratafs.db")));
        std::fs::write(directory.join("stratafs.db"), "").expect("written");
        assert_eq!(former_file(&file), Some(directory.join("stratafs.db")), "the nearer one first");
        assert_eq!(former_file(&directory.join("other.db")), None);
        std::fs::write(&file, "").expect("written");
        assert_eq!(former_file(&file), None);
    }
}
