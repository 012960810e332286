//! `restore`: brings files back as they were.

use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::counted;
use crate::ops::Changed;
use crate::{Error, VfsPathBuf};
use clap::Args;

/// Restore files and directories to an earlier version
///
/// A path that did not exist then is removed. A directory gets the files that it had, and loses those that it did not have. The
/// restored content is a new version, so nothing of the past is lost. `treehold checkpoint restore` restores the thread's state as a
/// whole.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold restore /memories/notes.md --at ~1
  treehold restore /memories --at 2h              # as it was two hours ago
  treehold restore /plan.md --at before           # a file of a checkpoint")]
pub(crate) struct Restore {
    /// Files and directories to restore
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Version: a time or age, `~N` or `vN` of a file, or a checkpoint
    #[arg(long, value_name = "MOMENT")]
    at: String,
}

impl Restore {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let paths = self.paths.iter().map(VfsPathBuf::parse).collect::<Result<Vec<_>, _>>().map_err(Error::from)?;
        let (paths, at) = (&paths, &self.at);
        let work = async |context: &mut Context| -> Result<Vec<Changed>, Failure> {
            let session = context.session().await?;
            Ok(session.restore_files(paths, at).await?)
        };
        let changed = context.lasting(work).await?;
        if context.out.is_text() {
            context.out.detail(format_args!("{} changed", counted(changed.len(), "path", "paths")));
        } else {
            context.out.json_list(&changed)?;
        }
        if changed.is_empty() {
            context.out.notice("nothing differs; nothing was changed");
        }
        Ok(Outcome::Done)
    }
}
