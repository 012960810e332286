//! `store snapshot`: copies the current content of a SQLite store to one file.

use super::{StoreName, shown};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::signal;
use crate::config::OpenStoreOptions;
use crate::store::SnapshotOptions;
use crate::{Error, ErrorKind, SqliteStore};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Copy a SQLite store into a new file, as of one moment
///
/// Writers are not blocked. The new file is a complete store (`sqlite:FILE`) and includes access tokens; use `treehold store
/// export` for a copy to give to others. Use `treehold store copy` for other engines.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// File to create
    file: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    store: StoreName,
}

impl Snapshot {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let name = &self.store.name(context)?;
        let file = match name.contains(':') {
            true => context.registry.sqlite_file(name, &OpenStoreOptions::new())?,
            false => context.config()?.sqlite_file(name)?,
        };
        let shown = shown(context, name);
        let Some(file) = file else {
            let message = format!(
                "the store `{shown}` is not a SQLite file, and only those have snapshots; copy it with `treehold store copy {shown} \
                    sqlite:{}`",
                self.file.display()
            );
            return Err(Error::unsupported(message).into());
        };
        if !SqliteStore::exists(&file)? {
            let message = format!("the store `{shown}` holds nothing yet: there is no store in {}", file.display());
            return Err(Error::new(ErrorKind::NotFound, message).into());
        }
        let store = SqliteStore::open(file)?;
        let progress = context.progress("copying");
        let options = SnapshotOptions::new(&self.file).with_replace(self.force);
        signal::watched().await;
        let taken = store.snapshot(options, |at| {
            progress.share(at.bytes, at.bytes_total, format_args!("copying: {} of {} bytes", at.bytes, at.bytes_total));
        });
        let bytes = taken.await?;
        drop(progress);
        match context.out.is_text() {
            true => context.out.detail(format_args!("wrote {bytes} bytes to {}", self.file.display())),
            false => context.out.json(&json!({"file": self.file, "bytes": bytes}))?,
        }
        Ok(Outcome::Done)
    }
}
