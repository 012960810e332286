//! `restore`: brings files back as they were.

use super::glob::found;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::ops::{Change, Changed, GlobOptions, OnFailure, OpKind};
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
  treehold restore /memories --at 2h --dry-run    # what would change
  treehold restore /memories --at 2h              # as it was two hours ago
  treehold restore /plan.md --at before           # a file of a checkpoint")]
pub(crate) struct Restore {
    /// Files and directories to restore
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Version: a time or age, `~N` or `vN` of a file, or a checkpoint
    #[arg(long, value_name = "MOMENT")]
    at: String,
    /// Only print what would be restored and removed
    #[arg(long)]
    dry_run: bool,
}

impl Restore {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let paths = self.paths.iter().map(VfsPathBuf::parse).collect::<Result<Vec<_>, _>>().map_err(Error::from)?;
        if self.dry_run {
            return preview(context, &paths, &self.at).await;
        }
        let (paths, at) = (&paths, &self.at);
        let work = async |context: &mut Context| -> Result<Vec<Changed>, Failure> {
            let session = context.session().await?;
            Ok(session.restore_files(paths, at).await?)
        };
        let changed = context.lasting(work).await?;
        if context.out.is_text() {
            context.out.notice(told(&changed).unwrap_or_else(|| "nothing differs; nothing was changed".to_owned()));
        } else {
            context.out.json_list(&changed)?;
        }
        Ok(Outcome::Done)
    }
}

/// Says how many files were restored and removed, unless nothing was.
fn told(changed: &[Changed]) -> Option<String> {
    let is_removal = |one: &&Changed| one.operation == OpKind::Delete;
    let removed: usize = changed.iter().filter(is_removal).map(|one| one.entries).sum();
    let restored = changed.iter().filter(|one| !is_removal(one)).count();
    let counts = [(restored, "restored"), (removed, "removed")];
    let counts: Vec<String> = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

/// Prints what a restore would do.
async fn preview(context: &mut Context, paths: &[VfsPathBuf], at: &str) -> Result<Outcome, Failure> {
    let session = context.session().await?;
    let mut planned = Vec::new();
    for change in session.plan_restore(paths, at).await? {
        match change {
            Change::Delete { path, recursive: true, .. } => {
                let options = GlobOptions::new("**").with_directories(true).with_hidden(true).with_ignored(true);
                let beneath = found(&*session.backend(), &path, options.with_on_failure(OnFailure::Fail), None).await?;
                let removed = [path].into_iter().chain(beneath.entries.into_iter().map(|entry| entry.path));
                planned.extend(removed.map(|path| Changed::new(OpKind::Delete, path)));
            }
            change => planned.push(Changed::new(change.kind(), change.path().to_owned())),
        }
    }
    if !context.out.is_text() {
        context.out.json_list(&planned)?;
        return Ok(Outcome::Done);
    }
    for one in &planned {
        let word = if one.operation == OpKind::Delete { "remove " } else { "restore" };
        context.out.line(format_args!("{word}  {}", one.path))?;
    }
    context.out.notice(told(&planned).map_or_else(|| "nothing differs".to_owned(), |told| format!("dry run: {told}")));
    Ok(Outcome::Done)
}
