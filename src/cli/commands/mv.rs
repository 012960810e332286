//! `mv` and `cp`: by rename within a tier, by copy across tiers.

use crate::cli::commands::write::{apply, attempt, tell_one};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::ops::{Change, Entry, EntryKind, OpKind, StatOptions, Version};
use crate::{Backend, Error, ErrorKind, VfsPath, VfsPathBuf};
use clap::Args;
use std::path::Path;

/// Move a file or directory
///
/// Creates missing parents of the target. If the target ends in `/`, the source moves into that directory. Otherwise the target
/// is the new path. An existing directory is never replaced.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold mv /draft.md /memories/plan.md
  treehold mv /draft.md /memories/                           # keeps the name")]
pub(crate) struct Mv {
    #[command(flatten)]
    paths: FromTo,
}

/// Copy a file or directory
///
/// Copies directories recursively and creates missing parents of the target. If the target ends in `/`, the source is copied into
/// that directory. Otherwise the target is the new path. An existing directory is never replaced.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold cp /workspace/README.md /memories/")]
pub(crate) struct Cp {
    #[command(flatten)]
    paths: FromTo,
    /// Accepted for compatibility; directories are always copied with their content
    #[arg(short = 'r', short_aliases = ['R', 'a'], long = "recursive", hide = true)]
    _recursive: bool,
}

#[derive(Debug, Args)]
struct FromTo {
    /// Source file or directory
    from: String,
    /// Target path, or a directory if it ends in `/`
    to: String,
    /// Replace an existing file, but never a directory
    #[arg(short, long)]
    force: bool,
}

impl FromTo {
    fn parse(&self) -> Result<(VfsPathBuf, VfsPathBuf), Failure> {
        let paths = VfsPathBuf::parse(&self.from).and_then(|from| Ok((from, VfsPathBuf::parse(&self.to)?)));
        let (from, to) = paths.map_err(|invalid| self.of_host().unwrap_or_else(|| invalid.into()))?;
        if !self.to.ends_with('/') {
            return Ok((from, to));
        }
        if from.is_root() {
            return Err(Error::invalid_argument("`/` has no name to keep; name the target without a `/` at its end").into());
        }
        let to = to.child(from.name())?;
        Ok((from, to))
    }

    /// Returns the error for a path of the host beside one of the tree.
    fn of_host(&self) -> Option<Error> {
        let Self { from, to, .. } = self;
        let message = match (Path::new(from), from.starts_with('/'), to.starts_with('/')) {
            (host, false, true) if host.is_dir() => {
                format!("`{from}` is a directory of the host; `treehold import {from} {to}` copies it into the tree")
            }
            (host, false, true) if host.exists() => {
                let name = host.file_name().filter(|_| to.ends_with('/')).unwrap_or_default().display();
                format!("`{from}` is a file of the host; `treehold write {to}{name} < {from}` copies it into the tree")
            }
            (_, true, false) => format!(
                "`{to}` is no path of the tree; `treehold cat {from} > {to}` copies a file to the host, and `treehold export {from} {to}` a \
                    directory"
            ),
            _ => return None,
        };
        Some(Error::invalid_argument(message))
    }
}

impl Mv {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (from, to) = self.paths.parse()?;
        let session = context.session().await?;
        if !session.is_state(&from) && session.is_state(&to) {
            let tree = context.tree().await?;
            if let Ok(Entry { kind: EntryKind::File, version: Some(version), .. }) = tree.stat(&from, &StatOptions::new()).await {
                let ended = into_state(context, from, version, to.clone(), self.paths.force).await;
                return explained(context, ended, &to).await;
            }
        }
        transfer(context, Change::Rename { from, to, overwrite: self.paths.force }).await
    }
}

impl Cp {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (from, to) = self.paths.parse()?;
        transfer(context, Change::Copy { from, to, overwrite: self.paths.force }).await
    }
}

/// Moves a file into the thread's state. The source is deleted only after the thread is saved.
async fn into_state(context: &mut Context, from: VfsPathBuf, version: Version, to: VfsPathBuf, force: bool) -> Result<Outcome, Failure> {
    let copy = Change::Copy { from: from.clone(), to: to.clone(), overwrite: force };
    let mut copied = context.lasting(async |context| attempt(context, std::slice::from_ref(&copy)).await).await?;
    let delete = Change::Delete { path: from.clone(), recursive: false, expect: Some(version) };
    let options = context.change_options();
    let deleted = context.tree().await?.apply(&[delete], &options).await;
    if let Err(error) = deleted {
        // A refused move must change nothing, so remove the copy unless it replaced another file.
        let undo = Change::Delete { path: to.clone(), recursive: false, expect: None };
        let is_new = copied.iter().all(|changed| changed.created);
        let undone = is_new && context.lasting(async |context| attempt(context, std::slice::from_ref(&undo)).await).await.is_ok();
        let end = if undone { "nothing was moved".to_owned() } else { format!("`{to}` is a copy of it, and both stay") };
        let message = format!("`{from}` could not be deleted: {}; {end}", error.message());
        return Err(error.with_message(message).into());
    }
    copied.iter_mut().for_each(|changed| changed.operation = OpKind::Rename);
    tell_one(context, &copied)
}

/// Applies a move or copy, which may take long.
async fn transfer(context: &mut Context, change: Change) -> Result<Outcome, Failure> {
    let progress = context.progress(if matches!(change, Change::Rename { .. }) { "moving" } else { "copying" });
    progress.wait();
    let ended = apply(context, std::slice::from_ref(&change)).await;
    drop(progress);
    explained(context, ended, change.target().unwrap_or(change.path())).await
}

/// If the target is an existing directory, explains how to move or copy into it.
async fn explained(context: &mut Context, ended: Result<Outcome, Failure>, to: &VfsPath) -> Result<Outcome, Failure> {
    match ended {
        Err(Failure::Library(error)) if error.kind() == ErrorKind::AlreadyExists && error.path() == Some(to) => {
            let is_directory = context.tree().await?.stat(to, &StatOptions::new()).await.is_ok_and(|entry| entry.is_directory());
            let message = match is_directory {
                true => format!(
                    "`{to}` is a directory, which is never replaced; write `{to}/` to put it into the directory, or name \
                    another target"
                ),
                false => error.message().to_owned(),
            };
            Err(error.with_message(message).into())
        }
        ended => ended,
    }
}
