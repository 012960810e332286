//! `mv` and `cp`: within a tier at once, across tiers by copy.

use crate::commands::write::apply;
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use stratafs::ops::Change;
use stratafs::{Error, VfsPathBuf};

/// Move a file or directory
///
/// Parents of the target appear by themselves. A target that ends in `/` is the directory to move into.
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
/// Parents of the target appear by themselves. A target that ends in `/` is the directory to copy into.
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
    /// Where to put it
    to: String,
    /// Replace a file that is there
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
        apply(context, &[Change::Rename { from, to, overwrite: self.paths.force }]).await
    }
}

impl Cp {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (from, to) = self.paths.parse()?;
        apply(context, &[Change::Copy { from, to, overwrite: self.paths.force }]).await
    }
}
