//! `find`: all entries beneath a directory, including hidden and ignored ones.

use crate::VfsPath;
use crate::cli::args::{When, at_least_one};
use crate::cli::commands::glob::{found, print_found, told_found};
use crate::cli::commands::ls::{Named, print_long};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::ops::{EntryKind, GlobOptions, OnFailure};
use clap::{Args, ValueEnum};

/// Find files and directories by name, kind and size
///
/// Unlike `glob`, it includes directories, hidden names and ignored files.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold find /workspace --name '*.log' --larger 1000000
  treehold find / --kind directory")]
pub(crate) struct Find {
    /// Directory to search
    #[arg(default_value = "/")]
    path: String,
    /// Print only entries whose name matches GLOB, or whose path matches if GLOB contains `/`
    #[arg(short, long, value_name = "GLOB", default_value = "*")]
    name: String,
    /// Ignore case in GLOB
    #[arg(short, long)]
    ignore_case: bool,
    /// Print only entries of this kind
    #[arg(short, long, value_enum)]
    kind: Option<Kind>,
    /// Print only files larger than BYTES
    #[arg(long, value_name = "BYTES")]
    larger: Option<u64>,
    /// Print only files smaller than BYTES
    #[arg(long, value_name = "BYTES")]
    smaller: Option<u64>,
    /// Also print kind, size in bytes and time
    #[arg(short, long)]
    long: bool,
    /// Print at most N paths
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
    #[command(flatten)]
    when: When,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    #[value(alias = "f")]
    File,
    #[value(alias = "d")]
    Directory,
    #[value(alias = "l")]
    Symlink,
    Other,
}

impl Find {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPath::parse(&self.path)?;
        let options = GlobOptions::new(&self.name)
            .with_directories(true)
            .with_case_insensitive(self.ignore_case)
            .with_hidden(true)
            .with_ignored(true)
            .with_on_failure(OnFailure::Partial);
        let tree = context.tree_at(&self.when).await?;
        let mut result = found(&*tree, &path, options, None).await?;
        let kind = self.kind.map(|kind| match kind {
            Kind::File => EntryKind::File,
            Kind::Directory => EntryKind::Directory,
            Kind::Symlink => EntryKind::Symlink,
            Kind::Other => EntryKind::Other,
        });
        let by_size = self.larger.is_some() || self.smaller.is_some();
        result.entries.retain(|entry| {
            kind.is_none_or(|kind| entry.kind == kind)
                && (!by_size || entry.kind == EntryKind::File)
                && self.larger.is_none_or(|bytes| entry.size_bytes > bytes)
                && self.smaller.is_none_or(|bytes| entry.size_bytes < bytes)
        });
        let found = result.entries.len();
        result.entries.truncate(self.limit.unwrap_or(usize::MAX));
        if found > result.entries.len() {
            context.out.notice(format_args!("{} more were found; raise `--limit`", found - result.entries.len()));
        }
        if self.long && context.out.is_text() {
            print_long(&mut context.out, &result.entries, Named::ByPath)?;
            return Ok(told_found(context, &result));
        }
        print_found(context, &result)
    }
}
