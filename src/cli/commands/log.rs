//! `log`: the versions of a file.

use super::thread::kept;
use crate::cli::args::at_least_one;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::ids::ShortIds;
use crate::cli::output::{Output, Style};
use crate::cli::table::{Cell, Column, Table};
use crate::cli::time::{ago, exact};
use crate::ops::{Author, Revision};
use crate::{Error, VfsPathBuf};
use clap::Args;
use jiff::Timestamp;

/// Print the versions of a file, newest first
///
/// A file of a store route with `history` has every recorded version, named `v1`, `v2` and so on. A file of the thread's state has
/// those of its checkpoints. A deleted file keeps its versions.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold log /memories/notes.md
  treehold diff /memories/notes.md@v1 /memories/notes.md@v2
  treehold cat /memories/notes.md --at ~1
  treehold restore /memories/notes.md --at v1")]
pub(crate) struct Log {
    /// Path of the file
    path: String,
    /// Print at most N versions
    #[arg(short = 'n', long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
}

const COLUMNS: [Column; 5] = [
    Column::new("version"),
    Column::new("changed"),
    Column::new("by").optional(1),
    Column::new("bytes").right().optional(2),
    Column::new("notes").cut(),
];

impl Log {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPathBuf::parse(&self.path).map_err(Error::from)?;
        let log = context.session().await?.log(&path, self.limit).await?;
        if let Some(mut table) = Table::on_terminal(&context.out, &COLUMNS) {
            let ids = match log.revisions.iter().any(|revision| revision.checkpoint.is_some()) {
                true => Some(ShortIds::of(&*kept(context)?, &context.scope()?).await?),
                false => None,
            };
            for revision in &log.revisions {
                table.row(cells(&context.out, ids.as_ref(), revision));
            }
            table.flush(&mut context.out)?;
        } else if context.out.is_text() {
            log.revisions.iter().try_for_each(|revision| print(&mut context.out, revision))?;
        } else {
            context.out.json_list(&log.revisions)?;
        }
        if log.more {
            context.out.notice("there may be more versions; raise `--limit`");
        }
        Ok(Outcome::Done)
    }
}

/// Returns what is known about the author of a version, by name.
pub(crate) fn author_notes(author: &Author) -> impl Iterator<Item = (&'static str, &str)> {
    let notes = [("thread", &author.thread), ("actor", &author.actor), ("tool", &author.tool), ("tool_call_id", &author.tool_call_id)];
    notes.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)))
}

/// Returns the row of a version for a terminal.
fn cells(out: &Output, ids: Option<&ShortIds>, revision: &Revision) -> [Cell; 5] {
    let name = match (revision.checkpoint, ids) {
        (Some(id), Some(ids)) => ids.cell(out, id),
        _ => Cell::styled(Style::Unique, format_args!("v{}", revision.number)),
    };
    let notes = author_notes(&revision.author).map(|(name, value)| format!("{name}={}", value.escape_debug()));
    let notes: Vec<String> = other(revision).into_iter().chain(lost(revision).map(str::to_owned)).chain(notes).collect();
    [
        name,
        Cell::new(ago(revision.at, Timestamp::now())),
        Cell::new(revision.operation),
        Cell::new(size(revision)),
        Cell::styled(Style::Faint, notes.join(" ")),
    ]
}

fn size(revision: &Revision) -> String {
    if revision.exists() { revision.size_bytes.to_string() } else { "-".to_owned() }
}

/// Returns where a version came from, or where the file went.
fn other(revision: &Revision) -> Option<String> {
    let other = revision.other.as_ref()?;
    Some(if revision.exists() { format!("<- {other}") } else { format!("-> {other}") })
}

/// Returns what the history does not have of a version.
fn lost(revision: &Revision) -> Option<&'static str> {
    match (revision.is_kept, revision.is_recorded) {
        (false, _) => Some("(content not kept)"),
        (true, false) => Some("(not recorded)"),
        (true, true) => None,
    }
}

fn print(out: &mut Output, revision: &Revision) -> Result<(), Failure> {
    let name = revision.checkpoint.map_or_else(|| format!("v{}", revision.number), |checkpoint| checkpoint.to_string());
    let mut line = format!("{name:<5}  {}  {:<7}  {:>9}", exact(revision.at), revision.operation, size(revision));
    if let Some(other) = other(revision) {
        line.push_str(&format!("  {other}"));
    }
    let version = revision.version.map(|version| version.to_string());
    for (name, value) in version.as_deref().map(|version| ("version", version)).into_iter().chain(author_notes(&revision.author)) {
        line.push_str(&format!("  {}", out.paint(Style::Faint, format_args!("{name}={}", value.escape_debug()))));
    }
    if let Some(lost) = lost(revision) {
        line.push_str(&format!("  {lost}"));
    }
    out.line(line)
}
