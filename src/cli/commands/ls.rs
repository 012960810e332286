//! `ls`: the children of directories, and files by name.

use crate::cli::args::{When, at_least_one};
use crate::cli::commands::glob::{add_failures, check_found, tell_unread};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Format, Output, Style};
use crate::cli::table::{Cell, Column, Table};
use crate::cli::time::{ago, exact};
use crate::ops::{Entry, EntryKind, Listing, LsOptions, OnFailure, StatOptions};
use crate::{Backend, ErrorKind, VfsPath, VfsPathBuf};
use clap::Args;
use jiff::Timestamp;

/// List directories
///
/// Prints names in order, with a `/` after directories. Hidden names are included. A file is listed by its path, before the directories;
/// with several paths, a line with its path precedes the names of each directory.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold ls -l /memories
  treehold ls -ld /memories /plan.md              # the paths themselves
  treehold ls / --at ~1")]
pub(crate) struct Ls {
    /// Directories and files to list
    #[arg(default_value = "/", value_name = "PATH")]
    paths: Vec<String>,
    /// Also print kind, size in bytes and time
    #[arg(short, long)]
    long: bool,
    /// List directories themselves, not their content
    #[arg(short, long)]
    directory: bool,
    /// Accepted for compatibility; hidden names are always included
    #[arg(short = 'a', short_alias = 'A', long = "all", hide = true)]
    _all: bool,
    /// Accepted for compatibility; names are always printed one a line
    #[arg(short = '1', hide = true)]
    _lines: bool,
    /// Print at most N entries of each directory
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
    #[command(flatten)]
    when: When,
}

impl Ls {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let paths = self.paths.iter().map(VfsPathBuf::parse).collect::<Result<Vec<_>, _>>()?;
        let tree = context.tree_at(&self.when).await?;
        let (mut named, mut directories) = (Vec::new(), Vec::new());
        for path in &paths {
            if self.directory {
                named.push(tree.stat(path, &StatOptions::new()).await?);
                continue;
            }
            match list(&*tree, path, self.limit).await {
                Ok(listing) => directories.push((path, listing)),
                Err(error) if error.kind() == ErrorKind::NotADirectory && error.path() == Some(path) => {
                    named.push(tree.stat(path, &StatOptions::new()).await?);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if context.out.is_text() {
            self.print(&mut context.out, &named, Named::ByPath)?;
            for (index, (path, listing)) in directories.iter().enumerate() {
                if paths.len() > 1 {
                    if index > 0 || !named.is_empty() {
                        context.out.empty_line()?;
                    }
                    context.out.line(format_args!("{path}:"))?;
                }
                self.print(&mut context.out, &listing.entries, Named::InDirectory)?;
            }
        }
        let mut whole = Listing::default();
        whole.entries = named;
        for (_, listing) in directories {
            whole.entries.extend(listing.entries);
            add_failures(&mut whole.failures, listing.failures);
            whole.truncated = whole.truncated.or(listing.truncated);
        }
        let out = &mut context.out;
        match out.format() {
            Format::Json => out.json(&whole)?,
            Format::JsonLines => out.json_list(&whole.entries)?,
            Format::Text => {}
        }
        if whole.truncated.is_some() {
            out.notice("there are more entries; raise `--limit`");
        }
        Ok(match tell_unread(context, &whole.failures, whole.failures.len()) {
            Some(kind) => Outcome::Failed(kind),
            None => Outcome::Done,
        })
    }

    fn print(&self, out: &mut Output, entries: &[Entry], named: Named) -> Result<(), Failure> {
        if self.long {
            return if entries.is_empty() && named == Named::ByPath { Ok(()) } else { print_long(out, entries, named) };
        }
        for entry in entries {
            let name = if named == Named::InDirectory { entry.name() } else { entry.path.as_str() };
            let name = marked(out, entry, name);
            out.line(name)?;
        }
        Ok(())
    }
}

/// Collects all pages of a directory, up to a limit.
async fn list(tree: &dyn Backend, path: &VfsPath, limit: Option<usize>) -> Result<Listing, crate::Error> {
    let mut whole = Listing::default();
    let mut options = LsOptions::new().with_on_failure(OnFailure::Partial);
    loop {
        if let Some(limit) = limit {
            options.limit = (limit - whole.entries.len()).min(10_000);
        }
        let page = tree.ls(path, &options).await?;
        // A failing mount is reported by name. If the directory itself cannot be read, fail: otherwise its mounts alone would look like its
        // whole content.
        if let Some(failure) = page.failures.iter().find(|failure| failure.error.path.as_deref() == Some(path)) {
            return Err((&failure.error).into());
        }
        whole.entries.extend(page.entries);
        add_failures(&mut whole.failures, page.failures);
        match page.truncated {
            Some(truncation) if limit.is_none_or(|limit| whole.entries.len() < limit) => {
                check_found(whole.entries.len())?;
                options.start_after = Some(truncation.next_after(options.start_after.as_ref())?);
            }
            truncated => {
                whole.truncated = truncated;
                return Ok(whole);
            }
        }
    }
}

/// Returns a name with its marker: `/` after a directory, `@` after a link.
pub(crate) fn marked(out: &Output, entry: &Entry, name: &str) -> String {
    match entry.kind {
        EntryKind::Directory => format!("{}/", out.paint(Style::Directory, name)),
        EntryKind::Symlink => format!("{name}@"),
        EntryKind::File | EntryKind::Other => name.to_owned(),
    }
}

const COLUMNS: [Column; 4] =
    [Column::new("kind").optional(2), Column::new("bytes").right(), Column::new("modified").optional(1), Column::new("name")];

/// How a list names its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// By their name, as all are in one directory.
    InDirectory,
    /// By their path.
    ByPath,
}

/// Prints entries with their details.
pub(crate) fn print_long(out: &mut Output, entries: &[Entry], named: Named) -> Result<(), Failure> {
    let name = |entry: &'_ Entry| -> String {
        match named {
            Named::InDirectory => entry.name().to_owned(),
            Named::ByPath => entry.path.to_string(),
        }
    };
    if let Some(mut table) = Table::on_terminal(out, &COLUMNS) {
        for entry in entries {
            let name = match entry.kind {
                EntryKind::Directory => Cell::styled(Style::Directory, name(entry)).with(None, "/"),
                EntryKind::Symlink => Cell::new(name(entry)).with(None, "@"),
                EntryKind::File | EntryKind::Other => Cell::new(name(entry)),
            };
            let modified = entry.modified_at.map_or_else(|| "-".to_owned(), |time| ago(time, Timestamp::now()));
            table.row([Cell::styled(Style::Faint, entry.kind), Cell::new(entry.size_bytes), Cell::new(modified), name]);
        }
        return table.flush(out);
    }
    for entry in entries {
        let kind = match entry.kind {
            EntryKind::Directory => 'd',
            EntryKind::Symlink => 'l',
            EntryKind::File => '-',
            EntryKind::Other => '?',
        };
        let time = entry.modified_at.map_or_else(|| "-".to_owned(), exact);
        let name = if named == Named::InDirectory { marked(out, entry, &name(entry)) } else { name(entry) };
        out.line(format_args!("{kind} {:>10} {time:>20} {name}", entry.size_bytes))?;
    }
    Ok(())
}
