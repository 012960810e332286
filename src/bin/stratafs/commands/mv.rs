//! `mv` and `cp`: within a tier at once, across tiers by copy.

use crate::commands::write::apply;
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use stratafs::ops::Change;
use stratafs::{Backend, Error, ErrorKind, VfsPathBuf};

/// Move a file or directory
///
/// Parents of the target appear by themselves. A target that ends in `/` is the directory to move into; without it the target is the
/// new path itself, and a directory that stands there is never replaced.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  stratafs mv /draft.md /memories/plan.md
  stratafs mv /draft.md /memories/                           keeps the name")]
pub(crate) struct Mv {
    #[command(flatten)]
    paths: FromTo,
}

/// Copy a file or directory
///
/// Directories are copied with all they hold. Parents of the target appear by themselves. A target that ends in `/` is the directory to
/// copy into; without it the target is the new path itself, and a directory that stands there is never replaced.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  stratafs cp /workspace/README.md /memories/")]
pub(crate) struct Cp {
    #[command(flatten)]
    paths: FromTo,
}

#[derive(Debug, Args)]
struct FromTo {
    /// What to take
    from: String,
    /// Where to put it: a path, or a directory with a `/` behind it
    to: String,
    /// Replace a file that is there; a directory stays
    #[arg(short, long)]
    force: bool,
}

impl FromTo {
    fn parse(&self) -> Result<(VfsPathBuf, VfsPathBuf), Failure> {
        let from = VfsPathBuf::parse(&self.from)?;
        let to = VfsPathBuf::parse(&self.to)?;
        if !self.to.ends_with('/') {
            return Ok((from, to));
        }
        if from.is_root() {
            return Err(Error::invalid_argument("`/` has no name to keep; name the target without a `/` at its end").into());
        }
        let to = to.child(from.name())?;
        Ok((from, to))
    }
}

impl Mv {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (from, to) = self.paths.parse()?;
        transfer(context, Change::Rename { from, to, overwrite: self.paths.force }).await
    }
}

impl Cp {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (from, to) = self.paths.parse()?;
        transfer(context, Change::Copy { from, to, overwrite: self.paths.force }).await
    }
}

/// Applies a move or copy. Where the target is a directory that stands in the way, the error says how to put it in there.
async fn transfer(context: &mut Context, change: Change) -> Result<Outcome, Failure> {
    let progress = context.progress(if matches!(change, Change::Rename { .. }) { "moving" } else { "copying" });
    progress.wait();
    let ended = apply(context, std::slice::from_ref(&change)).await;
    drop(progress);
    match (ended, change.target()) {
        (Err(Failure::Library(error)), Some(to)) if error.kind() == ErrorKind::AlreadyExists && error.path() == Some(to) => {
            let is_directory = context.tree().await?.stat(to).await.is_ok_and(|entry| entry.is_directory());
            let message = match is_directory {
                true => format!("`{to}` is a directory, which is never replaced; write `{to}/` to put it in there, or name another target"),
                false => error.message().to_owned(),
            };
            Err(error.with_message(message).into())
        }
        (ended, _) => ended,
    }
}
