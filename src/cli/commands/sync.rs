//! `sync`: a directory of the host and one of the tree, kept equal in both directions.

use crate::backend::Backend;
use crate::cli::commands::mirror::{Ended, Mirroring};
use crate::cli::commands::write::attempt;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::counted;
use crate::mirror::{MirrorAction, MirrorConflicts, MirrorOptions};
use crate::ops::{Change, StatOptions};
use crate::{ErrorKind, VfsPathBuf};
use clap::Args;
use std::path::PathBuf;

/// Keep a directory of the host and one of the tree equal
///
/// What was added, changed or removed on one side since the last run is done on the other; changes of both sides are merged by lines. The
/// first run takes over what each side has. Nothing in DIR is lost: where both sides conflict, PATH keeps the tree's file, and DIR's is
/// copied to a new file beside it, `NAME.conflict-HASH`.
///
/// Prints what is done at each path. With `--json`, each line is a JSON value.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold sync ~/notes /memories/notes
  treehold sync ~/notes /memories/notes --watch")]
pub(crate) struct Sync {
    /// Directory of the host
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Directory of the tree
    path: String,
    /// Go on until interrupted
    #[arg(short, long)]
    watch: bool,
}

impl Sync {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        // It refuses what governs the tree, and creates the directory.
        context.config()?.write_directory(&self.directory)?;
        let base = VfsPathBuf::parse(&self.path)?;
        if let Err(error) = context.tree().await?.stat(&base, &StatOptions::new()).await {
            match error.kind() {
                ErrorKind::NotFound => make(context, base).await?,
                _ => return Err(error.into()),
            }
        }
        let options =
            MirrorOptions::new().with_write_back(true).with_conflicts(MirrorConflicts::Copies).with_keep(true).with_existing(true);
        let syncing = Mirroring { path: &self.path, directory: &self.directory, options, once: !self.watch, doing: "keeping equal" };
        let ended = match syncing.run(context).await? {
            Ok(ended) => ended,
            Err(signal) => return Ok(Outcome::Interrupted(signal)),
        };
        context.out.notice(summary(&ended));
        // Links and special files stay on their side, as `import` leaves them.
        Ok(ended.outcome(context, |error| error.code != "unsupported"))
    }
}

/// Creates the directory of the tree.
async fn make(context: &mut Context, path: VfsPathBuf) -> Result<(), Failure> {
    let changes = [Change::CreateDir { path }];
    context.lasting(async |context| attempt(context, &changes).await.map(drop)).await
}

/// Says what was done on each side.
fn summary(ended: &Ended) -> String {
    let count = |actions: &[MirrorAction]| -> usize { actions.iter().filter_map(|action| ended.counts.get(action)).sum() };
    let to_tree = count(&[MirrorAction::WrittenBack, MirrorAction::RemovedFromTree, MirrorAction::Merged]);
    let to_directory = count(&[MirrorAction::Mirrored, MirrorAction::Removed, MirrorAction::Overwritten]);
    let mut text =
        format!("{} to the tree, {} to the directory", counted(to_tree, "change", "changes"), counted(to_directory, "change", "changes"));
    match count(&[MirrorAction::Conflict]) {
        0 => {}
        conflicts => text.push_str(&format!(", {}", counted(conflicts, "conflict", "conflicts"))),
    }
    text
}
