//! `stat`: the metadata of a path.

use crate::cli::args::When;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::ops::StatOptions;
use crate::{Backend, VfsPath};
use clap::Args;

/// Show the kind, size, version and times of a path
///
/// `write`, `edit` and `rm` compare this version if `--if-version` is given.
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// Paths to show
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
            entries.push(tree.stat(&VfsPath::parse(path)?, &StatOptions::new()).await?);
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
