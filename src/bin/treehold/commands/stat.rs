//! `stat`: the metadata of a path.

use crate::args::When;
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use treehold::{Backend, VfsPath};

/// Show what is known of a path: kind, size, version, times
///
/// The version is what `--if-version` of `write`, `edit` and `rm` compares.
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// Paths
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    when: When,
}

impl Stat {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let tree = context.tree_at(&self.when).await?;
        let mut entries = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            entries.push(tree.stat(&VfsPath::parse(path)?).await?);
        }
        let out = &mut context.out;
        if !out.is_text() {
            out.json_list(&entries)?;
            return Ok(Outcome::Done);
        }
        for entry in entries {
            out.line(format_args!("path      {}", entry.path))?;
            out.line(format_args!("kind      {}", entry.kind))?;
            out.line(format_args!("size      {}", entry.size_bytes))?;
            let facts = [
                ("version", entry.version.map(|version| version.to_string())),
                ("created", entry.created_at.map(|time| time.to_string())),
                ("modified", entry.modified_at.map(|time| time.to_string())),
            ];
            for (name, value) in facts {
                if let Some(value) = value {
                    out.line(format_args!("{name:<9} {value}"))?;
                }
            }
        }
        Ok(Outcome::Done)
    }
}
