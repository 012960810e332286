//! `store snapshot`: copies the current content of a SQLite store to one file.

use super::StoreName;
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use treehold::config::{OpenStoreOptions, sqlite_file};
use treehold::store::SnapshotOptions;
use treehold::{Error, ErrorKind, SqliteStore};

/// Copy a SQLite store, as it is at one moment, into a new file
///
/// Others may write meanwhile, and wait for nothing. The file is a store by itself, with all that it holds, tokens too: name it
/// `sqlite:FILE`. To hand a store to others, export it. Stores of other engines are copied by `treehold store copy`.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// File to make
    file: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    store: StoreName,
}

impl Snapshot {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let name = &self.store.name;
        let file = match name.contains(':') {
            true => sqlite_file(name, &OpenStoreOptions::new())?,
            false => context.config()?.sqlite_file(name)?,
        };
        let Some(file) = file else {
            let message = format!(
                "the store `{name}` is no SQLite file, and snapshots are of those; copy it by `treehold store copy {name} sqlite:{}`",
                self.file.display()
            );
            return Err(Error::unsupported(message).into());
        };
        if !file.exists() {
            return Err(
                Error::new(ErrorKind::NotFound, format!("the store `{name}` holds nothing yet: there is no {}", file.display())).into()
            );
        }
        let store = SqliteStore::open(file)?;
        let progress = context.progress("copying");
        let options = SnapshotOptions::new(&self.file).with_replace(self.force);
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
