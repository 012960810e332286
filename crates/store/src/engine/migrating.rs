//! Migrations of engines that block.

use crate::{MigrateOptions, MigrateProgress, MigrateReport};
use treehold_core::error::{Error, ErrorKind, Result};

/// Runs a blocking migration on a blocking thread, and passes its progress on.
///
/// # Errors
/// Those of `run`; [`Internal`](ErrorKind::Internal) if it panics.
pub async fn migrate_blocking(
    options: &MigrateOptions,
    report: &mut (dyn FnMut(MigrateProgress) + Send),
    run: impl FnOnce(&MigrateOptions, &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> + Send + 'static,
) -> Result<MigrateReport> {
    let (sender, mut progress) = tokio::sync::watch::channel(MigrateProgress::default());
    let options = options.clone();
    let mut done = tokio::task::spawn_blocking(move || run(&options, &mut |at| _ = sender.send(at)));
    loop {
        tokio::select! {
            biased;
            done = &mut done => {
                return done.map_err(|error| Error::new(ErrorKind::Internal, "the migration was interrupted; run it again").with_source(error))?;
            }
            Ok(()) = progress.changed() => report(*progress.borrow_and_update()),
        }
    }
}
