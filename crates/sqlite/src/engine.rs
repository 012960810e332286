//! The engine of `sqlite:FILE` and `sqlite:DIRECTORY/` in configurations, which takes over the default file under the former name of the
//! product.

use crate::directory::MARK;
use crate::{SqliteDirectory, SqliteOptions, SqliteStore};
use async_trait::async_trait;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_store::engine::{InvalidStoreUrl, StoreEngine, StoreLocation, StoreUrl, create_parent, migrate_blocking, open_embedded};
use treehold_store::migrate::COMMAND;
use treehold_store::{MigrateOptions, MigrateOutcome, MigrateProgress, MigrateReport, OldLayout, Store, StoreCapabilities};

/// The file name of the default store, and its former one.
const FILE: &str = "treehold.db";
const FORMER_FILE: &str = "stratafs.db";

/// The name of the default data directory, and its former one.
const DIRECTORY: &str = "treehold";
const FORMER_DIRECTORY: &str = "stratafs";

/// Stores in SQLite files: `sqlite:FILE`, and `sqlite:DIRECTORY/` with a file for each partition.
#[derive(Debug, Clone, Copy)]
pub struct SqliteEngine;

impl StoreEngine for SqliteEngine {
    fn schemes(&self) -> &[&str] {
        &["sqlite"]
    }

    fn url_form(&self) -> &str {
        "sqlite:FILE"
    }

    fn url_forms(&self) -> Vec<&str> {
        vec![self.url_form(), "sqlite:DIRECTORY/"]
    }

    fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
        let path = url.path()?;
        if url.location().ends_with('/') {
            // Without the slash at its end, which would hide the name of the directory.
            return Ok(Arc::new(DirectoryLocation(path.components().collect())));
        }
        Ok(Arc::new(Location(path)))
    }
}

/// A SQLite file.
#[derive(Debug)]
struct Location(PathBuf);

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.0.display())
    }
}

#[async_trait]
impl StoreLocation for Location {
    fn capabilities(&self) -> StoreCapabilities {
        SqliteStore::offers()
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.0)
    }

    async fn exists(&self) -> Result<bool> {
        // Opening it then says that the former file has to be taken over.
        Ok(former_file(&self.0).is_some() || SqliteStore::exists(&self.0)?)
    }

    async fn open(&self) -> Result<Arc<dyn Store>> {
        if let Some(former) = former_file(&self.0) {
            let error = OldLayout::error(Some(Box::new(AtHost::new(&former))));
            let message = format!("its former default file, `stratafs.db`, has to be taken over; run {COMMAND}");
            return Err(error.with_message(message));
        }
        open_embedded(&self.0, Path::to_path_buf, |file| Ok(Arc::new(SqliteStore::open(file)?))).await
    }

    async fn migrate(&self, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        let file = self.0.clone();
        migrate_blocking(options, report, move |options, report| migrate(&file, options, report)).await
    }
}

/// A directory with a SQLite file for each partition.
#[derive(Debug)]
struct DirectoryLocation(PathBuf);

impl fmt::Display for DirectoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}/", self.0.display())
    }
}

#[async_trait]
impl StoreLocation for DirectoryLocation {
    fn capabilities(&self) -> StoreCapabilities {
        SqliteStore::offers()
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.0)
    }

    async fn exists(&self) -> Result<bool> {
        // Opening a file, or a directory with other files, reports what it is.
        Ok(std::fs::read_dir(&self.0).map_or(self.0.exists(), |mut entries| entries.next().is_some()))
    }

    async fn open(&self) -> Result<Arc<dyn Store>> {
        open_embedded(&self.0, |path| path.join(MARK), |path| Ok(Arc::new(SqliteDirectory::open(path)?))).await
    }

    async fn migrate(&self, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        let path = self.0.clone();
        migrate_blocking(options, report, move |options, report| SqliteDirectory::migrate(&path, options, report)).await
    }
}

/// Returns the default file under the former name of the product, if the default file is missing and that one exists: in the same
/// directory, or in the former default data directory.
fn former_file(file: &Path) -> Option<PathBuf> {
    if file.file_name()? != FILE || file.exists() {
        return None;
    }
    let directory = file.parent()?;
    let beside = directory.join(FORMER_FILE);
    let elsewhere = (directory.file_name()? == DIRECTORY).then(|| directory.with_file_name(FORMER_DIRECTORY).join(FORMER_FILE));
    [Some(beside), elsewhere].into_iter().flatten().find(|former| former.is_file())
}

fn migrate(file: &Path, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
    let Some(former) = former_file(file) else { return SqliteStore::migrate(&SqliteOptions::new(file), how, tell) };
    // If killed between the two steps, the next run finds the file migrated and moves it.
    let mut report = SqliteStore::migrate(&SqliteOptions::new(&former), how, tell)?;
    report.taken_from = Some(former.display().to_string());
    report.outcome = if how.dry_run { MigrateOutcome::Planned } else { MigrateOutcome::Migrated };
    if !how.dry_run {
        create_parent(file)?;
        // No process has the file open, as the migration ensured, so there is no write-ahead log left.
        SqliteStore::take_over(&former, file).map_err(|cause| {
            let message = "the migrated file cannot be moved to its new name; move it there, or name it in the configuration";
            Error::new(ErrorKind::Unavailable, message).with_source(AtHost::new(&former).with_cause(cause))
        })?;
    }
    Ok(report)
}

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
