//! `edit`: replaces text within a file.

use crate::VfsPathBuf;
use crate::cli::commands::write::apply;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::ops::{Change, Edit as Replacement, Version};
use clap::Args;

/// Replace text in a file
///
/// OLD must occur exactly once unless `--all` is given. It is literal text, not a pattern.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold edit /memories/todo.md 'buy milk' 'buy oat milk'
  treehold edit --all /workspace/main.rs old_name new_name")]
pub(crate) struct Edit {
    /// Path of the file
    path: String,
    /// Text to replace
    #[arg(allow_hyphen_values = true)]
    old: String,
    /// Replacement text
    #[arg(allow_hyphen_values = true)]
    new: String,
    /// Replace every occurrence
    #[arg(short, long)]
    all: bool,
    /// Fail unless the file has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Version>,
}

impl Edit {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPathBuf::parse(&self.path)?;
        let edits = vec![if self.all { Replacement::all(self.old, self.new) } else { Replacement::new(self.old, self.new) }];
        apply(context, &[Change::Edit { path, edits, expect: self.if_version }]).await
    }
}
