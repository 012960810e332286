//! `rm`: removes files and directories.

use crate::commands::write::apply_all;
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use treehold::ops::{Change, Version};
use treehold::{BackendExt, VfsPathBuf};

/// Remove files and directories
///
/// A directory that holds something is removed only with `-r`. The root of the tree and mount points are never removed.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold rm /memories/old.md
  treehold rm -r /drafts")]
pub(crate) struct Rm {
    /// What to remove
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Remove directories with all they hold
    #[arg(short, long)]
    recursive: bool,
    /// Pass over what does not exist
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
            let mut changes = Vec::new();
            for path in &self.paths {
                let path = VfsPathBuf::parse(path)?;
                if !self.force || tree.exists(path.as_str()).await? {
                    changes.push(Change::Delete { path, recursive: self.recursive, expect: self.if_version });
                }
            }
            Ok(changes)
        })
        .await
    }
}
