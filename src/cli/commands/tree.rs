//! `tree`: draws a directory with its content.

use crate::backend::Tree as Shown;
use crate::cli::args::{When, at_least_one};
use crate::cli::commands::glob::tell_unread;
use crate::cli::commands::ls::marked;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style, counted};
use crate::ops::Entry;
use crate::{BackendExt, VfsPath};
use clap::Args;

/// Show a directory as a tree
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold tree /memories --depth 2")]
pub(crate) struct Tree {
    /// Directory to show
    #[arg(default_value = "/")]
    path: String,
    /// Descend at most N levels
    #[arg(short = 'L', long, value_name = "N", default_value_t = 16)]
    depth: usize,
    /// Accepted for compatibility; hidden names are always included
    #[arg(short = 'a', long = "all", hide = true)]
    _all: bool,
    /// Print at most N entries
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = at_least_one)]
    limit: usize,
    #[command(flatten)]
    when: When,
}

impl Tree {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPath::parse(&self.path)?;
        let tree = context.tree_at(&self.when).await?.tree(path.as_str(), self.depth, self.limit).await?;
        let out = &mut context.out;
        match out.format() {
            crate::cli::output::Format::Json => out.json(&tree)?,
            crate::cli::output::Format::JsonLines => out.json_list(&tree.entries)?,
            crate::cli::output::Format::Text => {
                let root = out.paint(Style::Directory, path.as_str()).to_string();
                out.line(root)?;
                draw(out, &tree, path.depth())?;
                let directories = tree.entries.iter().filter(|entry| entry.is_directory()).count();
                out.empty_line()?;
                out.line(format_args!(
                    "{}, {}",
                    counted(directories, "directory", "directories"),
                    counted(tree.entries.len() - directories, "file", "files")
                ))?;
            }
        }
        if tree.truncated {
            out.notice(format_args!("only the first {} entries are shown; raise `--limit` or name a directory", self.limit));
        }
        Ok(match tell_unread(context, &tree.failures, tree.failures.len()) {
            Some(kind) => Outcome::Failed(kind),
            None => Outcome::Done,
        })
    }
}

/// Draws entries in path order, so the content of a directory follows it directly.
fn draw(out: &mut Output, tree: &Shown, base: usize) -> Result<(), Failure> {
    let entries = &tree.entries;
    // For each level above, whether its entry was the last of its directory.
    let mut last_above: Vec<bool> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let level = entry.path.depth() - base;
        let is_last = is_last(&entries[index..], entry.path.depth());
        last_above.truncate(level - 1);
        let mut line: String = last_above.iter().map(|last| if *last { "    " } else { "│   " }).collect();
        line.push_str(if is_last { "└── " } else { "├── " });
        line.push_str(&marked(out, entry, entry.name()));
        if let Some(failure) = tree.failures.iter().find(|failure| failure.path == entry.path) {
            let code = failure.error.code.replace('_', " ");
            line.push_str(&format!(" {}", out.paint(Style::Match, format_args!("[{code}]"))));
        }
        out.line(line)?;
        last_above.push(is_last);
    }
    Ok(())
}

/// Returns whether the first of `entries` has no later sibling.
fn is_last(entries: &[Entry], depth: usize) -> bool {
    entries[1..].iter().find(|entry| entry.path.depth() <= depth).is_none_or(|entry| entry.path.depth() < depth)
}
