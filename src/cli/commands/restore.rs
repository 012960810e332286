//! `restore`: brings files back as they were.

use super::glob::found;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::ops::{Changed, Entry, Forgotten, GlobOptions, OnFailure, OpKind, ReadOptions, StatOptions};
use crate::{Backend, Error, ErrorKind, VfsPath, VfsPathBuf};
use clap::Args;
use std::collections::BTreeMap;

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

/// The most bytes of a file that are compared, as many as a restore reads.
const FILE_BYTES_MAX: u64 = 256 << 20;

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
    let (now, then) = (context.tree().await?, context.tree_as_of(at).await?);
    let mut planned = Vec::new();
    for path in paths {
        let (past, present) = (files(&*then, path).await?, files(&*now, path).await?);
        if past.is_none() && present.is_none() {
            return Err(Error::not_found(path).into());
        }
        let (past, present) = (past.unwrap_or_default(), present.unwrap_or_default());
        let removed = present.keys().filter(|path| !past.contains_key(*path));
        planned.extend(removed.map(|path| Changed::new(OpKind::Delete, path.clone())));
        for (path, entry) in past {
            if present.get(&path).is_none_or(|other| other.size_bytes != entry.size_bytes) || differs(&*then, &*now, &path).await? {
                planned.push(Changed::new(OpKind::Write, path));
            }
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

/// Returns whether a file has other content in two trees that both have it.
async fn differs(one: &dyn Backend, other: &dyn Backend, path: &VfsPath) -> Result<bool, Error> {
    let options = ReadOptions::new().with_bytes_max(FILE_BYTES_MAX);
    Ok(one.read(path, &options).await?.content != other.read(path, &options).await?.content)
}

/// Returns the file at a path, or those beneath it; `None` if nothing is there.
async fn files(tree: &dyn Backend, path: &VfsPath) -> Result<Option<BTreeMap<VfsPathBuf, Entry>>, Error> {
    let entry = match tree.stat(path, &StatOptions::new()).await {
        Ok(entry) => entry,
        // What is not known is not absent.
        Err(error) if Forgotten::is_source_of(&error) => return Err(error),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !entry.is_directory() {
        return Ok(Some(BTreeMap::from([(entry.path.clone(), entry)])));
    }
    let options = GlobOptions::new("**").with_hidden(true).with_ignored(true).with_on_failure(OnFailure::Fail);
    let beneath = found(tree, path, options, None).await?;
    Ok(Some(beneath.entries.into_iter().filter(|entry| !entry.is_directory()).map(|entry| (entry.path.clone(), entry)).collect()))
}
