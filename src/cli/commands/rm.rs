//! `rm`: removes files and directories.

use crate::cli::commands::write::apply_all;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::ops::{Change, Version};
use crate::{BackendExt, VfsPathBuf};
use clap::Args;

/// Remove files and directories
///
/// A directory that is not empty is removed only with `-r`. The root of the tree and mount points are never removed.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold rm /memories/old.md
  treehold rm -r /drafts")]
pub(crate) struct Rm {
    /// Files and directories to remove
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Remove directories and their content
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short, long)]
    force: bool,
    /// Fail unless the file has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Version>,
}

impl Rm {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        apply_all(context, async |context| {
            let tree = context.tree().await?;
            let mut changes: Vec<Change> = Vec::new();
            for path in &self.paths {
                let path = VfsPathBuf::parse(path)?;
                // What a path before this one removes does not exist any more.
                let is_gone = || changes.iter().any(|change| path.starts_with(change.path()));
                if !self.force || (!is_gone() && tree.exists(path.as_str()).await?) {
                    changes.push(Change::Delete { path, recursive: self.recursive, expect: self.if_version });
                }
            }
            Ok(changes)
        })
        .await
    }
}
